"""Options that several commands share, and the objects that they stand for."""

import getpass
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dflashctl.config.load import Override, parse_set
from dflashctl.errors import ConfigError
from dflashctl.stages.jobs import Site
from dflashctl.transport.base import Transport

if TYPE_CHECKING:
    from dflashctl.config.inventory import Inventory

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout instead of text.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print exactly what would run and be written, and do nothing.")]
Host = Annotated[str, typer.Option("--host", metavar="NAME", help="Where it runs.")]
WorkdirOption = Annotated[
    Path, typer.Option("--workdir", metavar="DIR", help="Folder that runs, jobs and evaluations are kept in.")
]
Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="run.yaml; options and --set win over it."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="One value of run.yaml, e.g. train.seed=1; repeatable."),
]
HostsOption = Annotated[
    Path | None,
    typer.Option("--hosts", metavar="FILE", help="Default: what $DFLASHCTL_HOSTS names, else ./hosts.yaml."),
]
Touch = Annotated[
    list[str] | None,
    typer.Option("--touch", metavar="NAME", help="A protected host or run that this may touch; repeatable."),
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's name, from `train list`.")]


def transport_of(host: str) -> Transport:
    """Raises ConfigError for a host that is not known."""
    from dflashctl.transport.local import LocalTransport

    if host != LocalTransport.name:
        raise ConfigError(f"host {host} is not known: this version knows `local` only", hint="--host local")
    return LocalTransport()


def inventory_of(hosts: Path | None) -> "Inventory":
    """What --hosts, the environment or the folder names; `local` alone if none does. Raises ConfigError."""
    from dflashctl.config.inventory import find_hosts_file, load_inventory

    return load_inventory(find_hosts_file(hosts))


def author() -> str:
    """Who types; where the machine has no name for the user, the number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def site_of(transport: Transport) -> Site:
    from dflashctl.bundle import bundle_root

    return Site(host=transport.name, python=transport.python(), bundle_root=bundle_root())


def overrides_of(sets: list[str] | None, **options: tuple[str, Any]) -> tuple[Override, ...]:
    """--set values, then each option that was given: `target=("data.tokenize.target", value)`."""
    given = tuple(parse_set(text) for text in sets or ())
    named = tuple(
        Override(path, str(value) if isinstance(value, Path) else value, f"--{name.replace('_', '-')}")
        for name, (path, value) in options.items()
        if value is not None and value is not False
    )
    return given + named
