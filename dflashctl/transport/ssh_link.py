"""The bytes' way to a host's SSH server: a TCP connection, a channel through a jump host, or a command's pipes."""

import contextlib
import socket
import subprocess
import threading
from typing import TYPE_CHECKING, Protocol, cast

from paramiko import ChannelException, SSHException

from dflashctl.transport.ssh_config import Hop
from dflashctl.transport.unreachable import said, unreachable, why_not_connected, why_not_forwarded

if TYPE_CHECKING:
    from paramiko import Channel

CONNECT_S = 10.0
DEAD_AFTER_S = 45.0
"""Sent bytes that nobody confirms for so long end a TCP connection, where the system can do that."""
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}


class Jump(Protocol):
    @property
    def hop(self) -> Hop: ...

    def to(self, address: str, port: int, timeout_s: float) -> "Channel": ...


class Link:
    """`socket` is what SSH is spoken over."""

    def __init__(self, link: socket.socket, process: "subprocess.Popen[bytes] | None" = None) -> None:
        self.socket = link
        self._process = process

    def close(self) -> None:
        """What waits in it is woken."""
        with contextlib.suppress(SSHException, OSError, EOFError):
            self.socket.close()
        if self._process is not None:
            self._process.kill()
            # Not waited for here: it is dead soon, and whoever closes may be in a hurry.
            threading.Thread(target=self._process.wait, name="ssh-proxy-end", daemon=True).start()


def open_link(hop: Hop, under: Jump | None, host: str) -> Link:
    """`under`: the connection to the hop before this one. Raises HostUnreachable, saying `host`."""
    limit_s = hop.connect_s or CONNECT_S
    if under is not None:
        try:
            # A channel has of a socket what is needed.
            return Link(cast(socket.socket, under.to(hop.address, hop.port, limit_s)))
        except ChannelException as error:
            raise unreachable(host, *why_not_forwarded(under.hop, hop, error.code, error.text)) from error
        except (SSHException, OSError, EOFError) as error:
            raise unreachable(host, *why_not_forwarded(under.hop, hop, None, said(error))) from error
    if hop.proxy_command is not None:
        return _through_command(hop.proxy_command)
    try:
        return Link(_connected(hop, limit_s))
    except OSError as error:
        raise unreachable(host, *why_not_connected(hop, error, limit_s)) from error


def _connected(hop: Hop, limit_s: float) -> socket.socket:
    """To the first of the name's addresses that answers. Raises OSError."""
    wanted = _FAMILIES.get(hop.family, socket.AF_UNSPEC)
    failure = OSError(f"{hop.address} has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(
        hop.address, hop.port, wanted, type=socket.SOCK_STREAM
    ):
        link = socket.socket(family, kind, protocol)
        try:
            link.settimeout(limit_s)
            if hop.bind_address is not None:
                link.bind((hop.bind_address, 0))
            link.connect(address)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(DEAD_AFTER_S * 1000))
        except OSError as error:
            link.close()
            failure = error
        else:
            return link
    raise failure


def _through_command(command: str) -> Link:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            ("/bin/sh", "-c", f"exec {command}"),
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL,
            # The terminal's Ctrl-C is this process's business.
            start_new_session=True,
        )
    return Link(ours, process)
