"""The hosts that a command names, as places to run in, and the gate before those that are protected."""

import os
import sys
from pathlib import Path

from dflashctl.artifacts import DEFAULT_WORKDIR, LOCAL
from dflashctl.cli.options import inventory_of
from dflashctl.config.hosts import HostSpec
from dflashctl.config.protection import require_touch
from dflashctl.facts.host_runs import HostRun
from dflashctl.stages.train.place import Place
from dflashctl.transport.local_shell import LocalShell


def place_of(host: str, hosts: Path | None, workdir: Path | None) -> Place:
    """Raises ConfigError for a host that is not known."""
    (place,) = places_of([host], hosts, workdir)
    return place


def places_of(names: list[str], hosts: Path | None, workdir: Path | None, *, takes_all: bool = False) -> list[Place]:
    """The hosts of those names, or all that there are. Raises ConfigError for one that is not known."""
    if set(names) == {LOCAL} and not takes_all:
        return [_here(workdir)]
    from dflashctl.config.ssh import ssh_settings
    from dflashctl.transport.pool import Pool
    from dflashctl.transport.ssh_shell import open_shell

    inventory = inventory_of(hosts)
    settings, pool = ssh_settings(os.environ), Pool()
    places = []
    for name in dict.fromkeys(inventory.names if takes_all else names):
        if name == LOCAL:
            places.append(_here(workdir))
            continue
        spec = inventory.lookup(name)
        shell = open_shell(name, inventory.content, settings, pool)
        places.append(Place(name, spec, shell, spec.workdir if workdir is None else str(workdir)))
    return places


def _here(workdir: Path | None) -> Place:
    folder = str((DEFAULT_WORKDIR if workdir is None else workdir).expanduser().absolute())
    return Place(LOCAL, HostSpec(workdir=folder, python=sys.executable), LocalShell(), folder)


def gate(place: Place, found: HostRun, what: str, touch: tuple[str, ...]) -> None:
    require_touch(
        what,
        host=place.host,
        is_host_protected=place.spec.protected,
        run=found.state.run.run_id,
        is_run_protected=found.record.train.protected,
        given=touch,
    )
