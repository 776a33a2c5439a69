"""The hosts that a command names, as places to run in, and the gate before those that are protected."""

import os
import shlex
import sys
from pathlib import Path

from dflashctl.artifacts import DEFAULT_WORKDIR, LOCAL
from dflashctl.cli.options import inventory_of
from dflashctl.config.hosts import HostSpec
from dflashctl.config.protection import require_touch
from dflashctl.errors import ConfigError
from dflashctl.facts.host_runs import HostRun
from dflashctl.stages.train.place import Place
from dflashctl.transport.local_shell import LocalShell


def place_of(host: str, hosts: Path | None, workdir: Path | None) -> Place:
    """Raises ConfigError for a host that is not known."""
    (place,) = places_of([host], hosts, workdir)
    return place


def places_of(names: list[str], hosts: Path | None, workdir: Path | None, *, takes_all: bool = False) -> list[Place]:
    """The hosts of those names, or all that there are. Raises ConfigError for one that is not known."""
    inventory = inventory_of(hosts)
    if set(names) == {LOCAL} and not takes_all:
        return [_here(inventory.lookup(LOCAL), workdir)]
    from dflashctl.config.ssh import ssh_settings
    from dflashctl.transport.pool import Pool
    from dflashctl.transport.ssh_shell import open_shell

    if workdir is not None and not str(workdir).startswith(("/", "~/")):
        raise ConfigError(f"--workdir {workdir}: on other hosts it must be absolute or below ~/")
    settings, pool = ssh_settings(os.environ), Pool()
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
        places.append(Place(name, spec, shell, folder, options))
    return places


def _here(spec: HostSpec, workdir: Path | None) -> Place:
    """The work folder is where one types, as for all commands here; jobs run as this one unless hosts.yaml differs."""
    folder = str((DEFAULT_WORKDIR if workdir is None else workdir).expanduser().absolute())
    own = {} if "python" in spec.model_fields_set else {"python": sys.executable}
    return Place(LOCAL, spec.model_copy(update={**own, "workdir": folder}), LocalShell(), folder)


def gate(place: Place, found: HostRun, what: str, touch: tuple[str, ...]) -> None:
    """Raises ConfigError if the host or the run is protected, or may be, and `touch` does not name it."""
    run = found.state.run
    if found.record is None and run.run_id not in touch:
        raise ConfigError(
            f"whether run {run.run_id} on {place.host} is protected cannot be told: {run.record_path} cannot be read; "
            f"`{what}` needs --touch {run.run_id}"
        )
    require_touch(
        what,
        host=place.host,
        is_host_protected=place.spec.protected,
        run=found.state.run.run_id,
        is_run_protected=found.record is not None and found.record.train.protected,
        given=touch,
    )
