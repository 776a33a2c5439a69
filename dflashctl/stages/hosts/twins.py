"""Hosts that turned out to be one machine, whatever hosts.yaml and ssh_config call them. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dflashctl.facts.finding import Finding
from dflashctl.stages.hosts.check import Examination


@dataclass(frozen=True)
class Twins:
    hosts: tuple[str, ...]
    finding: Finding


def find_twins(examinations: Iterable[Examination], protected: Mapping[str, bool]) -> tuple[Twins, ...]:
    """Two or more hosts of one boot, PID namespace and name; containers of one machine are none.

    `protected`: by host. A note where it differs: a command on the name that is not protected would pass.
    """
    by_machine: dict[tuple[str, ...], list[str]] = {}
    for found in examinations:
        if found.machine is not None:
            by_machine.setdefault(found.machine, []).append(found.host)
    groups = [tuple(hosts) for hosts in by_machine.values() if len(hosts) > 1]
    return tuple(Twins(hosts, _finding(hosts, protected)) for hosts in groups)


def _finding(hosts: tuple[str, ...], protected: Mapping[str, bool]) -> Finding:
    said = f"{' and '.join(hosts)} are one machine"
    loose = [host for host in hosts if not protected[host]]
    if len(loose) in (0, len(hosts)):
        return Finding("same machine", "ok", said)
    kept = [host for host in hosts if protected[host]]
    verb = "is" if len(kept) == 1 else "are"
    cure = f"protected: true at {' and '.join(loose)} too, in hosts.yaml"
    return Finding("same machine", "note", f"{said}, and only {' and '.join(kept)} {verb} protected", cure)
