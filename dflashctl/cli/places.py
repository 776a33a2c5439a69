"""The hosts that a command names, as places to run in, and the gate before those that are protected."""

import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dflashctl.cli.options import inventory_of
from dflashctl.config.hosts import HostSpec
from dflashctl.config.protection import require_touch
from dflashctl.defaults import DEFAULT_WORKDIR, LOCAL
from dflashctl.errors import ConfigError
from dflashctl.stages.train.place import Place
from dflashctl.transport.local_shell import LocalShell

if TYPE_CHECKING:
    from dflashctl.config.inventory import Inventory
    from dflashctl.config.ssh import SshSettings
    from dflashctl.facts.host_runs import HostRun
    from dflashctl.transport.pool import Pool


def place_of(host: str, hosts: Path | None, workdir: Path | None) -> Place:
    """Raises ConfigError for a host that is not known."""
    (place,) = places_of([host], hosts, workdir)
    return place


def places_of(
    names: list[str], hosts: Path | None, workdir: Path | None, *, takes_all: bool = False, pool: "Pool | None" = None
) -> list[Place]:
    """The hosts of those names, or all that there are. Raises ConfigError for one that is not known."""
    inventory = inventory_of(hosts)
    if set(names) == {LOCAL} and not takes_all:
        return [_here(inventory.lookup(LOCAL), workdir)]
    from dflashctl.config.ssh import ssh_settings
    from dflashctl.transport.pool import Pool
    from dflashctl.transport.ssh_shell import open_shell

    if workdir is not None and not str(workdir).startswith(("/", "~/")):
        raise ConfigError(f"--workdir {workdir}: on other hosts it must be absolute or below ~/")
    settings, pool = ssh_settings(without_secrets(inventory)), pool or Pool()
    places = []
    for name in dict.fromkeys(inventory.names if takes_all else names):
        if name == LOCAL:
            places.append(_here(inventory.lookup(LOCAL), workdir))
            continue
        spec = inventory.lookup(name)
        shell = open_shell(name, inventory.content, settings, pool)
        options = f" --host {name}"
        options += "" if workdir is None else f" --workdir {shlex.quote(str(workdir))}"
        options += "" if hosts is None else f" --hosts {shlex.quote(str(hosts))}"
        folder = spec.workdir if workdir is None else str(workdir)
        twins = partial(protected_twins, name, inventory, settings)
        places.append(Place(name, spec, shell, folder, options, twins))
    return places


def without_secrets(inventory: "Inventory") -> dict[str, str]:
    """The environment for ssh and its like, which are nobody that a secret is meant for."""
    secrets = {name for spec in inventory.content.hosts.values() for name in spec.secrets}
    return {name: value for name, value in os.environ.items() if name not in secrets}


def protected_twins(name: str, inventory: "Inventory", settings: "SshSettings") -> tuple[str, ...]:
    """Other names of hosts.yaml that are protected and lead to the same address and port, as ssh_config has it."""
    from dflashctl.transport.ssh_config import route_to

    others = [other for other, spec in inventory.content.hosts.items() if spec.protected and other not in (name, LOCAL)]
    if not others:
        return ()
    here = route_to(name, inventory.content, settings)[-1]
    ends = {other: route_to(other, inventory.content, settings)[-1] for other in others}
    return tuple(other for other, end in ends.items() if (end.address, end.port) == (here.address, here.port))


def _here(spec: HostSpec, workdir: Path | None) -> Place:
    """The work folder is where one types, as for all commands here; jobs run as this one unless hosts.yaml differs."""
    folder = str((DEFAULT_WORKDIR if workdir is None else workdir).expanduser().absolute())
    own = {} if "python" in spec.model_fields_set else {"python": sys.executable}
    return Place(LOCAL, spec.model_copy(update={**own, "workdir": folder}), LocalShell(), folder)


def refuse_twins(place: Place, what: str, touch: tuple[str, ...]) -> None:
    """Raises ConfigError if the host is a protected one by another name, and `touch` does not name that."""
    twins = [] if place.spec.protected else [name for name in place.protected_twins() if name not in touch]
    if twins:
        raise ConfigError(
            f"{place.host} is the same machine as {twins[0]}, which is protected: `{what}` needs --touch {twins[0]}",
            hint=f"use --host {twins[0]}",
        )


def gate(place: Place, found: "HostRun", what: str, touch: tuple[str, ...]) -> None:
    """Raises ConfigError if the host or the run is protected, or may be, and `touch` does not name it."""
    run = found.state.run
    if found.record is None and run.run_id not in touch:
        raise ConfigError(
            f"whether run {run.run_id} on {place.host} is protected cannot be told: {run.record_path} cannot be read; "
            f"`{what}` needs --touch {run.run_id}"
        )
    refuse_twins(place, what, touch)
    require_touch(
        what,
        host=place.host,
        is_host_protected=place.spec.protected,
        run=found.state.run.run_id,
        is_run_protected=found.record is not None and found.record.train.protected,
        given=tuple(name for name in touch if name not in place.protected_twins()) if touch else (),
    )
