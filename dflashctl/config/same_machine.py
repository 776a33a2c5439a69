"""Entries of a hosts.yaml that reach the same machine, as far as that shows without asking anybody.

Two aliases that ssh_config leads to one address do not show: `hosts check` compares what machines say of themselves.
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from dflashctl.config.hosts import HostsFile, HostSpec
from dflashctl.config.load import Tree
from dflashctl.config.schema import refusal
from dflashctl.defaults import LOCAL

SSH_PORT = 22
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_NUMBER = re.compile(r"0x[0-9a-f]*|0[0-7]*|[1-9][0-9]*")


@dataclass(frozen=True)
class _Machine:
    """What an sshd of it is reached by; `local` has no address."""

    address: str = ""
    port: int | None = None
    """None: ssh_config says."""
    seen_from: str = ""
    """Where the address is a loopback one: the host whose it is."""

    def is_same(self, other: "_Machine") -> bool:
        """An alias whose port only ssh_config knows may have any."""
        is_same_port = self.port == other.port or None in (self.port, other.port)
        return is_same_port and (self.address, self.seen_from) == (other.address, other.seen_from)

    def __str__(self) -> str:
        return f"{self.address}{f' port {self.port}' if self.port else ''}" if self.address else "this machine"


def check_twins(content: HostsFile, tree: Tree) -> None:
    """Expects ways that end. Raises ConfigError for two names of one machine that nothing tells apart, or of which only
    one is protected: commands on the other name would pass."""
    _refuse_equal(content, tree)
    hosts = {LOCAL: HostSpec(), **content.hosts}
    protected = [name for name, host in hosts.items() if host.protected]
    for name, twin in product([name for name in hosts if name not in protected], protected):
        machine = _machine(name, hosts)
        if machine.is_same(_machine(twin, hosts)):
            said = f"{name} and {twin} are the same machine ({machine}), and only {twin} is protected"
            hint = (
                f"write protected: true at {name} too; if they are two machines, give each its port or an alias of "
                "its own in ssh_config"
            )
            raise refusal(tree, ("hosts", name if name in content.hosts else twin), said, hint)


def _refuse_equal(content: HostsFile, tree: Tree) -> None:
    seen: dict[tuple[str | int | None, ...], str] = {}
    for name, host in content.hosts.items():
        if name == LOCAL:
            continue
        where = (_address(host.ssh or host.address or name), host.port or SSH_PORT, host.user, host.via)
        if where in seen:
            said = f"{name} and {seen[where]} are the same machine: same address, port, user and way"
            raise refusal(tree, ("hosts", name), said, "keep one, or give each the port of its own sshd")
        seen[where] = name


def _machine(name: str, hosts: Mapping[str, HostSpec]) -> _Machine:
    """By the name of a host, or an alias of ssh_config."""
    if name == LOCAL:
        return _Machine()
    host = hosts.get(name, HostSpec())
    address = _address(host.ssh or host.address or name)
    if address in _LOOPBACK:
        before = host.via or LOCAL
        if host.port in (None, SSH_PORT):
            return _machine(before, hosts)
        # Any other port may be a container's, or a tunnel's end.
        return _Machine(_LOOPBACK[0], host.port, seen_from=before)
    return _Machine(address, host.port or (None if host.address is None else SSH_PORT))


def _address(text: str) -> str:
    """In one of the notations that a name or an IP address has."""
    plain = text.lower().rstrip(".")
    number = _ipv4(plain)
    try:
        address = ipaddress.ip_address(plain if number is None else number)
    except ValueError:
        return plain
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _ipv4(text: str) -> int | None:
    """The number that inet_aton(3) reads: up to four parts, decimal, octal or hexadecimal; the last fills the rest."""
    parts = text.split(".")
    if len(parts) > 4 or not all(_NUMBER.fullmatch(part) for part in parts):
        return None
    *first, last = (int(part, 16) if part[:2] == "0x" else int(part, 8 if part[0] == "0" else 10) for part in parts)
    if any(part > 255 for part in first) or last >= 256 ** (4 - len(first)):
        return None
    return last + sum(part << (24 - 8 * index) for index, part in enumerate(first))
