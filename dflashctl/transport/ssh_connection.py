"""One SSH connection: reached, its host key checked, logged in. Every step has a limit, and a sentence if it fails.

Loads paramiko (a fifth of a second): imported only where a connection is opened.
"""

import contextlib
import errno
import logging
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import cast

from paramiko import (
    AuthenticationException,
    BadAuthenticationType,
    Channel,
    ChannelException,
    SSHException,
    Transport,
)
from paramiko.packet import Packetizer
from paramiko.ssh_exception import IncompatiblePeer

from dflashctl.errors import HostUnreachable
from dflashctl.transport import known_hosts
from dflashctl.transport.known_hosts import HostKey, Verdict
from dflashctl.transport.ssh_config import Hop
from dflashctl.transport.ssh_keys import Keys

CONNECT_S = 10.0
HANDSHAKE_S = 15.0
LOGIN_S = 20.0
OPEN_S = 10.0
KEEPALIVE_S = 15
DEAD_AFTER_S = 45
"""Sent bytes that nobody confirms for so long end the connection."""
CHANNELS = 8
"""sshd's MaxSessions is 10."""
_LOG = "dflashctl.ssh"
_RSA = ("rsa-sha2-512", "rsa-sha2-256")


class Connection:
    """An open, logged-in connection."""

    def __init__(self, hop: Hop, transport: Transport, process: "subprocess.Popen[bytes] | None") -> None:
        self.hop = hop
        self._transport = transport
        self._process = process
        self._free = threading.BoundedSemaphore(CHANNELS)

    @property
    def is_open(self) -> bool:
        return self._transport.is_active()

    @contextlib.contextmanager
    def session(self, timeout_s: float) -> Iterator[Channel]:
        """A channel for one command. Raises SSHException, OSError, EOFError."""
        if not self._free.acquire(timeout=max(0.0, timeout_s)):
            raise SSHException(f"{CHANNELS} commands are running there already")
        try:
            channel = self._transport.open_session(timeout=min(OPEN_S, timeout_s))
            try:
                yield channel
            finally:
                channel.close()
        finally:
            self._free.release()

    def to(self, address: str, port: int, timeout_s: float) -> Channel:
        """A channel to what listens there, as seen from this host. Raises SSHException, OSError, EOFError."""
        return self._transport.open_channel(
            "direct-tcpip", (address, port), ("127.0.0.1", 0), timeout=min(OPEN_S, timeout_s)
        )

    def close(self) -> None:
        self._transport.close()
        _end(self._process)


def connect(hop: Hop, under: Connection | None, host: str) -> Connection:
    """`under`: the connection that this one goes through. Raises HostUnreachable, saying `host`."""
    whom = _Whom(host, hop)
    link, process = whom.reach(under)
    transport = _Transport(link, packetizer_class=_Packetizer)
    try:
        transport.set_log_channel(_LOG)
        whom.greet(transport)
        whom.log_in(transport)
        transport.set_keepalive(KEEPALIVE_S)
    except BaseException:
        transport.close()
        link.close()
        _end(process)
        raise
    return Connection(hop, transport, process)


class _Packetizer(Packetizer):
    """Without paramiko's own timer, which is a thread that keeps the interpreter from ending."""

    def start_handshake(self, timeout: float) -> None:
        pass


class _Transport(Transport):
    _preferred_ciphers = (
        "aes128-gcm@openssh.com",
        "aes256-gcm@openssh.com",
        "aes128-ctr",
        "aes192-ctr",
        "aes256-ctr",
    )


class _Whom:
    """The steps towards one host, and what is said when one fails."""

    def __init__(self, host: str, hop: Hop) -> None:
        self._host = host
        self._hop = hop
        # Its own record of failures is for --debug; on its own it would write tracebacks to stderr.
        logging.getLogger(_LOG).addHandler(logging.NullHandler())

    def reach(self, under: Connection | None) -> tuple[socket.socket, "subprocess.Popen[bytes] | None"]:
        hop = self._hop
        limit_s = hop.connect_s or CONNECT_S
        if under is not None:
            try:
                # A channel has of a socket what Transport needs.
                return cast(socket.socket, under.to(hop.address, hop.port, limit_s)), None
            except (SSHException, OSError, EOFError) as error:
                raise self._unreachable(*_why_not_through(under.hop, hop, error)) from error
        if hop.proxy_command is not None:
            return _through_command(hop.proxy_command)
        try:
            return _through_socket(hop, limit_s), None
        except OSError as error:
            raise self._unreachable(*_why_not_reached(hop, error, limit_s)) from error

    def greet(self, transport: Transport) -> None:
        """Agree on keys for the connection, and see that the host is the one that is known."""
        lines = self._known()
        types = known_hosts.known_types(lines)
        if types:
            wanted = tuple(name for kind in types for name in (_RSA if kind == "ssh-rsa" else (kind,)))
            options = transport.get_security_options()
            usable = tuple(name for name in wanted if name in options.key_types)
            options.key_types = usable + tuple(name for name in options.key_types if name not in usable)
        transport.banner_timeout = HANDSHAKE_S
        try:
            transport.start_client(timeout=HANDSHAKE_S)
        except (SSHException, OSError, EOFError) as error:
            raise self._unreachable(*_why_no_greeting(self._hop, error)) from error
        if transport.host_key is None or not transport.initial_kex_done:
            raise self._unreachable(
                f"{_place(self._hop)} did not finish the SSH greeting within {HANDSHAKE_S:g} s",
                f"ssh -v {self._hop.alias}",
            )
        key = HostKey(transport.host_key.get_name(), transport.host_key.asbytes())
        self._check(key, known_hosts.judge(key, lines))

    def log_in(self, transport: Transport) -> None:
        transport.auth_timeout = LOGIN_S
        keys = Keys(self._hop)
        tried: list[str] = []
        deadline_s = time.monotonic() + LOGIN_S
        for candidate in keys.candidates():
            if time.monotonic() > deadline_s:
                raise self._no_login(tried, keys.refusals, f"no key was accepted within {LOGIN_S:g} s")
            tried.append(candidate.where)
            try:
                more = transport.auth_publickey(self._hop.user, candidate.key)
            except BadAuthenticationType as error:
                raise self._no_login(tried, keys.refusals, f"it wants {_listed(error.allowed_types)}") from error
            except AuthenticationException as error:
                if not transport.is_active():
                    reason = "it closed the connection, perhaps after too many keys"
                    raise self._no_login(tried, keys.refusals, reason) from error
                continue
            except (SSHException, OSError, EOFError) as error:
                if not transport.is_active():
                    raise self._unreachable(
                        f"{_place(self._hop)} closed the connection while logging in ({_said(error)})",
                        f"ssh -v {self._hop.alias}",
                    ) from error
                keys.refusals.append(f"{candidate.where} cannot sign ({_said(error)})")
                continue
            if more:
                raise self._no_login(tried, keys.refusals, f"beside the key it wants {_listed(more)}")
            return
        self._log_in_without(transport, tried, keys.refusals)

    def _log_in_without(self, transport: Transport, tried: list[str], refusals: list[str]) -> None:
        """Some hosts know who comes by the way that it takes, and ask for nothing."""
        try:
            transport.auth_none(self._hop.user)
        except BadAuthenticationType as error:
            raise self._no_login(tried, refusals, f"it accepts {_listed(error.allowed_types)}") from error
        except (SSHException, OSError, EOFError) as error:
            raise self._no_login(tried, refusals, "no key was accepted") from error

    def _known(self) -> tuple[known_hosts.Line, ...]:
        files = (*self._hop.known_hosts, *self._hop.system_known_hosts)
        try:
            return known_hosts.lines_of(self._hop.host_key_name, files)
        except OSError as error:
            raise self._unreachable(
                f"the host keys in {error.filename} cannot be read ({error.strerror})", "look at its rights"
            ) from error

    def _check(self, key: HostKey, verdict: Verdict) -> None:
        hop = self._hop
        if verdict.kind == "new":
            verdict = self._first_use(key)
        if verdict.kind == "known":
            return
        assert verdict.line is not None
        where = f"{verdict.line.file} line {verdict.line.number}"
        if verdict.kind == "changed":
            raise self._unreachable(
                f"{hop.host_key_name} shows another host key ({key.type} {key.fingerprint}) than {where} says "
                f"({verdict.line.key.type} {verdict.line.key.fingerprint})",
                "nothing was sent to it: ask whoever runs it whether its key was changed, and compare its "
                "fingerprint (ssh-keygen -lf on its own console)",
            )
        if verdict.kind == "revoked":
            raise self._unreachable(
                f"{hop.host_key_name} shows a host key ({key.type} {key.fingerprint}) that {where} revokes",
                "nothing was sent to it: ask whoever runs it for its new key",
            )
        raise self._unreachable(
            f"{hop.host_key_name} is known by a certificate authority only ({where}), which dflashctl does not check",
            f"add the host's own key to known_hosts, after comparing its fingerprint; it shows {key.fingerprint}",
        )

    def _first_use(self, key: HostKey) -> Verdict:
        hop = self._hop
        if hop.is_strict:
            raise self._unreachable(
                f"{hop.host_key_name} is not in known_hosts, and StrictHostKeyChecking is yes; it shows {key.type} "
                f"{key.fingerprint}",
                f"compare the fingerprint with whoever runs it, then ssh {hop.alias} once",
            )
        file = hop.known_hosts[0] if hop.known_hosts else "/dev/null"
        if file == "/dev/null":
            raise self._unreachable(
                f"there is no file to keep the host key of {hop.host_key_name} in",
                f"give {hop.alias} a UserKnownHostsFile in ssh_config",
            )
        try:
            return known_hosts.add(hop.host_key_name, key, file, hashes=hop.hashes_known_hosts)
        except OSError as error:
            raise self._unreachable(
                f"the host key of {hop.host_key_name} cannot be kept in {file} ({error.strerror or error})",
                f"make {file} writable",
            ) from error

    def _no_login(self, tried: list[str], refusals: list[str], reason: str) -> HostUnreachable:
        hop = self._hop
        keys = f"tried {_listed(tried)}" if tried else "there was no key to try"
        others = f"; {'; '.join(refusals)}" if refusals else ""
        return self._unreachable(
            f"{_place(hop)} does not let {hop.user} in: {reason}; {keys}{others}",
            f"ssh -v {hop.alias}; check user and IdentityFile in ssh_config, and authorized_keys there",
        )

    def _unreachable(self, reason: str, hint: str) -> HostUnreachable:
        return HostUnreachable(f"{self._host} cannot be reached: {reason}", host=self._host, hint=hint)


def _through_socket(hop: Hop, limit_s: float) -> socket.socket:
    families = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
    found = socket.getaddrinfo(
        hop.address, hop.port, families.get(hop.family, socket.AF_UNSPEC), type=socket.SOCK_STREAM
    )
    failure: OSError | None = None
    for family, kind, protocol, _, address in found:
        link = socket.socket(family, kind, protocol)
        try:
            link.settimeout(limit_s)
            if hop.bind_address is not None:
                link.bind((hop.bind_address, 0))
            link.connect(address)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_AFTER_S * 1000)
        except OSError as error:
            link.close()
            failure = error
        else:
            return link
    assert failure is not None
    raise failure


def _through_command(command: str) -> tuple[socket.socket, "subprocess.Popen[bytes]"]:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            ("/bin/sh", "-c", f"exec {command}"),
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    return ours, process


def _end(process: "subprocess.Popen[bytes] | None") -> None:
    if process is not None:
        process.kill()
        process.wait()


def _place(hop: Hop) -> str:
    via = f" ({hop.address}:{hop.port})" if hop.alias != hop.address else f":{hop.port}"
    return f"{hop.alias}{via}"


def _why_not_reached(hop: Hop, error: OSError, limit_s: float) -> tuple[str, str]:
    if isinstance(error, socket.gaierror):
        return f"its address {hop.address} is not known ({error.strerror})", f"check the name; ssh {hop.alias}"
    if isinstance(error, ConnectionRefusedError):
        return f"nothing listens on {_place(hop)}", "check the port, and that sshd runs there"
    if isinstance(error, TimeoutError):
        return f"{_place(hop)} did not answer within {limit_s:g} s", "check that it is up, and the network or VPN"
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return f"there is no route to {_place(hop)}", "check the network or VPN, and whether it needs a jump host"
    return f"{_place(hop)}: {error.strerror or error}", f"ssh -v {hop.alias}"


def _why_not_through(jump: Hop, hop: Hop, error: Exception) -> tuple[str, str]:
    if isinstance(error, ChannelException):
        if error.code == 1:
            return (
                f"jump host {jump.alias} does not allow forwarding",
                f"AllowTcpForwarding in sshd_config of {jump.alias}",
            )
        return (
            f"jump host {jump.alias} gets no connection to {hop.address}:{hop.port} ({error.text})",
            f"check the address, and that {hop.alias} is up; ssh {jump.alias}",
        )
    return f"jump host {jump.alias} did not open the way to {hop.address}:{hop.port} ({_said(error)})", (
        f"ssh {jump.alias}"
    )


def _why_no_greeting(hop: Hop, error: Exception) -> tuple[str, str]:
    if isinstance(error, IncompatiblePeer):
        return f"{_place(hop)} and this machine have no algorithm in common ({_said(error)})", f"ssh -v {hop.alias}"
    if "banner" in str(error):
        return (
            f"{_place(hop)} takes the connection and does not greet as an SSH server",
            "check the port; a server with too many logins at once (MaxStartups) does so too",
        )
    return f"{_place(hop)} closed the connection during the greeting ({_said(error)})", f"ssh -v {hop.alias}"


def _said(error: Exception) -> str:
    return str(error).strip() or type(error).__name__


def _listed(words: list[str]) -> str:
    return ", ".join(words) or "nothing"
