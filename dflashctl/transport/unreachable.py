"""Why a host could not be reached, in one sentence and what to do next."""

import errno
import socket

from dflashctl.errors import HostUnreachable
from dflashctl.transport.ssh_config import Hop


def unreachable(host: str, reason: str, hint: str) -> HostUnreachable:
    return HostUnreachable(f"{host} cannot be reached: {reason}", host=host, hint=hint)


def place(hop: Hop) -> str:
    """For people: the name that they know, and where that is."""
    return f"{hop.alias}:{hop.port}" if hop.alias == hop.address else f"{hop.alias} ({hop.address}:{hop.port})"


def said(error: BaseException) -> str:
    return str(error).strip() or type(error).__name__


def listed(words: list[str]) -> str:
    return ", ".join(words) or "nothing"


def why_not_connected(hop: Hop, error: OSError, limit_s: float) -> tuple[str, str]:
    """Reason and hint, for a TCP connection that was not made."""
    if isinstance(error, socket.gaierror):
        return f"its address {hop.address} is not known ({error.strerror})", "check the name, DNS and VPN"
    if isinstance(error, ConnectionRefusedError):
        return f"{place(hop)} refuses connections", "check the port, and that sshd runs there"
    if isinstance(error, TimeoutError):
        return f"{place(hop)} did not answer within {limit_s:g} s", "check that it is up, and the network or VPN"
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return f"there is no route to {place(hop)}", "check the network or VPN, and whether it needs a jump host"
    return f"{place(hop)}: {error.strerror or error}", f"ssh -v {hop.by_hand}"


def why_not_forwarded(jump: Hop, hop: Hop, code: int | None, words: str) -> tuple[str, str]:
    """Reason and hint, for a jump host that did not open the way; `code` as in RFC 4254 5.1, if it told."""
    if code == 1:
        return (
            f"its jump host {jump.alias} does not allow forwarding",
            f"AllowTcpForwarding in {jump.alias}'s sshd_config",
        )
    target = f"{hop.address}:{hop.port}"
    if code is not None:
        return (
            f"its jump host {jump.alias} gets no connection to {target} ({words})",
            f"check that address and port, and that it is up; try it from {jump.alias}",
        )
    return f"its jump host {jump.alias} did not open the way to {target} ({words})", f"ssh -v {jump.by_hand}"


def why_not_greeted(hop: Hop, error: Exception, limit_s: float, *, has_greeted: bool) -> tuple[str, str]:
    """Reason and hint, for a host that was connected to and did not agree on keys for the connection."""
    if has_greeted:
        if "no acceptable" in str(error):
            return f"{place(hop)} and this machine have no algorithm in common ({said(error)})", f"ssh -v {hop.by_hand}"
        return f"{place(hop)} hung up during the greeting ({said(error)})", f"ssh -v {hop.by_hand}"
    if hop.proxy_command is not None:
        return f"its ProxyCommand brings no SSH server ({hop.proxy_command})", f"ssh -v {hop.by_hand}"
    how = f"said nothing within {limit_s:g} s" if isinstance(error.__context__, TimeoutError) else "hung up"
    return (
        f"{place(hop)} took the connection and {how}, where an SSH server greets",
        "check the port; a host with too many logins at once, or one that bans this address, does so too",
    )
