"""One SSH connection: reached, its host key checked, logged in, watched. Every step has a limit.

Loads paramiko (a fifth of a second): imported only where a connection is opened.
"""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator
from typing import cast

from paramiko import Channel, Message, SSHException, Transport
from paramiko.common import cMSG_GLOBAL_REQUEST
from paramiko.packet import Packetizer

from dflashctl.transport import known_hosts
from dflashctl.transport.host_key import check_host_key, known_lines
from dflashctl.transport.known_hosts import HostKey, Line
from dflashctl.transport.ssh_config import Hop
from dflashctl.transport.ssh_link import DEAD_AFTER_S, Link, open_link
from dflashctl.transport.ssh_login import log_in
from dflashctl.transport.unreachable import place, unreachable, why_not_greeted

GREET_S = 15.0
OPEN_S = 10.0
KEEPALIVE_S = 15
NUM_SESSIONS = 8
"""At once on one connection: sshd's MaxSessions is 10."""
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr")
"""By what they cost; paramiko on its own would take the first last."""
_LOG = "dflashctl.ssh"
_RSA = ("rsa-sha2-512", "rsa-sha2-256")


class Connection:
    """An open, logged-in connection. May be used by several threads."""

    def __init__(self, hop: Hop, link: Link, transport: "_Transport") -> None:
        self.hop = hop
        self._link = link
        self._transport = transport
        self._free = threading.BoundedSemaphore(NUM_SESSIONS)

    @property
    def is_open(self) -> bool:
        return self._transport.is_active()

    @property
    def cipher(self) -> str:
        return self._transport.local_cipher

    @contextlib.contextmanager
    def session(self, timeout_s: float) -> Iterator[Channel]:
        """A channel for one command. Raises SSHException, OSError, EOFError."""
        if not self._free.acquire(timeout=max(0.0, timeout_s)):
            raise SSHException(f"{NUM_SESSIONS} scripts are running there already")
        try:
            with self._or_dead():
                channel = self._transport.open_session(timeout=min(OPEN_S, timeout_s))
            try:
                yield channel
            finally:
                channel.close()
        finally:
            self._free.release()

    def to(self, address: str, port: int, timeout_s: float) -> Channel:
        """A channel to what listens there, as seen from this host. Raises SSHException, OSError, EOFError."""
        with self._or_dead():
            return self._transport.open_channel(
                "direct-tcpip", (address, port), ("127.0.0.1", 0), timeout=min(OPEN_S, timeout_s)
            )

    def close_if_silent_since(self, at_s: float) -> None:
        """It has been asked something at that time, on the monotonic clock; one that says nothing to it is dead."""
        if self._transport.heard_s < at_s:
            self.close()

    def close(self) -> None:
        # The link first: nobody waits for a last word over one that may be dead.
        self._link.close()
        self._transport.close()

    @contextlib.contextmanager
    def _or_dead(self) -> Iterator[None]:
        asked_s = time.monotonic()
        try:
            yield
        except (SSHException, OSError, EOFError):
            self.close_if_silent_since(asked_s)
            raise


def connect(hop: Hop, under: Connection | None, host: str) -> Connection:
    """`under`: the connection that this one goes through. Raises HostUnreachable, saying `host`."""
    lines = known_lines(hop, host)
    link = open_link(hop, under, host)
    transport = _Transport(link)
    try:
        _greet(transport, hop, lines, host)
        log_in(transport, hop, host)
        transport.watch()
    except BaseException:
        link.close()
        transport.close()
        raise
    return Connection(hop, link, transport)


def _greet(transport: "_Transport", hop: Hop, lines: tuple[Line, ...], host: str) -> None:
    """Agree on keys for the connection, and see that the host is the one that is known."""
    options = transport.get_security_options()
    options.ciphers = CIPHERS
    known = tuple(name for kind in known_hosts.known_types(lines) for name in (_RSA if kind == "ssh-rsa" else (kind,)))
    # So that it shows a key that is known, if it has several.
    first = tuple(name for name in known if name in options.key_types)
    options.key_types = first + tuple(name for name in options.key_types if name not in first)
    try:
        transport.start_client(timeout=GREET_S)
    except (SSHException, OSError, EOFError) as error:
        has_greeted = bool(transport.remote_version)
        raise unreachable(host, *why_not_greeted(hop, error, GREET_S, has_greeted=has_greeted)) from error
    if transport.host_key is None or not transport.initial_kex_done:
        raise unreachable(
            host, f"{place(hop)} did not finish the SSH greeting within {GREET_S:g} s", f"ssh -v {hop.by_hand}"
        )
    check_host_key(hop, HostKey(transport.host_key.get_name(), transport.host_key.asbytes()), lines, host)


class _Packetizer(Packetizer):
    # After so much paramiko wants new keys, and hangs if a channel is closed meanwhile. This, half of what RFC 4344 3.2
    # allows for these ciphers, makes that far less often than its own 2**29.
    REKEY_BYTES = 2**35

    def __init__(self, link: socket.socket) -> None:
        super().__init__(link)
        self._link = link
        self._is_tcp = isinstance(link, socket.socket) and link.family in (socket.AF_INET, socket.AF_INET6)
        self.heard_s = time.monotonic()
        """When the last message came."""

    def start_handshake(self, timeout: float) -> None:
        """No timer of its own: that is a thread which keeps the interpreter from ending. `_greet` has the limit."""

    def close(self) -> None:
        # A channel through a jump host says a last word, which a dead link does not take; paramiko's thread would end
        # with a traceback.
        with contextlib.suppress(SSHException, OSError, EOFError):
            super().close()

    def read_message(self) -> tuple[int, Message]:
        if self._is_tcp and hasattr(socket, "TCP_QUICKACK"):
            # sshd holds back a small packet until the one before it is confirmed, which the kernel would do 40 ms late.
            # It forgets this soon, so it is told each time.
            self._link.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        message = super().read_message()
        self.heard_s = time.monotonic()
        return message


class _Transport(Transport):
    def __init__(self, link: Link) -> None:
        super().__init__(link.socket, packetizer_class=_Packetizer)
        # What went wrong is said once, by whoever asked; on its own paramiko would write tracebacks to stderr.
        logger = logging.getLogger(_LOG)
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
        self.set_log_channel(_LOG)
        self.banner_timeout = GREET_S

    @property
    def heard_s(self) -> float:
        return cast(_Packetizer, self.packetizer).heard_s

    def watch(self) -> None:
        """From now on an answer is asked for now and then; without one the connection ends."""
        self.packetizer.set_keepalive(KEEPALIVE_S, self._beat)

    def _parse_global_request(self, message: Message) -> None:
        """Says something back to what sshd tells on its own after the log-in.

        sshd holds its next small packet, the first session's, until that one is confirmed. Behind a jump host it is
        the kernel there that confirms, and does so 40 ms late, unless it has something to carry back.
        """
        super()._parse_global_request(message)  # type: ignore[misc]
        if self.clear_to_send.is_set():
            self.send_ignore()

    def _beat(self) -> None:
        if time.monotonic() - self.heard_s > DEAD_AFTER_S:
            raise EOFError
        if not self.clear_to_send.is_set():
            # New keys are being agreed on: this thread does that, and must not wait for it.
            return
        beat = Message()
        beat.add_byte(cMSG_GLOBAL_REQUEST)
        beat.add_string("keepalive@openssh.com")
        beat.add_boolean(True)
        self._send_user_message(beat)  # type: ignore[attr-defined]
