"""Whether the key that a host shows is the one that it is known by. At first use it is kept; then it must stay."""

import logging

from dflashctl.transport import known_hosts
from dflashctl.transport.known_hosts import HostKey, Line, Verdict
from dflashctl.transport.ssh_config import Hop
from dflashctl.transport.unreachable import unreachable

NOWHERE = "/dev/null"
LOG = logging.getLogger(__name__)
"""Unless somebody takes them, its warnings are lines on stderr."""


def known_lines(hop: Hop, host: str) -> tuple[Line, ...]:
    """What is known of the host. Raises HostUnreachable, saying `host`, if the files cannot be read."""
    try:
        return known_hosts.lines_of(hop.host_key_name, (*hop.known_hosts, *hop.system_known_hosts))
    except OSError as error:
        raise unreachable(
            host,
            f"the host keys in {error.filename} cannot be read ({error.strerror})",
            f"make {error.filename} readable",
        ) from error


def check_host_key(hop: Hop, key: HostKey, lines: tuple[Line, ...], host: str) -> None:
    """`lines`: as from `known_lines`. Raises HostUnreachable, saying `host`, for any key but the known one."""
    _refuse_revoked(hop, key, host)
    verdict = known_hosts.judge(key, lines)
    if verdict.kind == "new":
        verdict = _keep(hop, key, host)
    if verdict.kind == "known":
        return
    assert verdict.line is not None
    where = f"{verdict.line.file} line {verdict.line.number}"
    shown = f"{hop.host_key_name} shows the host key {key.type} {key.fingerprint}"
    if verdict.kind == "changed":
        known = verdict.line.key
        raise unreachable(
            host,
            f"{shown}, and {where} says {known.type} {known.fingerprint}: it has changed, or another machine answers",
            "nothing was sent there; ask whoever runs it whether and why its key changed, and compare both with what "
            "`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` says on its own console",
        )
    if verdict.kind == "revoked":
        raise unreachable(
            host, f"{shown}, which {where} revokes", "nothing was sent there; ask whoever runs it for its new key"
        )
    raise unreachable(
        host,
        f"{hop.host_key_name} is known through a certificate authority only ({where}), which dflashctl cannot check",
        f"compare {key.type} {key.fingerprint} with its key on its own console, and add that to known_hosts",
    )


def _refuse_revoked(hop: Hop, key: HostKey, host: str) -> None:
    if hop.revoked_keys is None:
        return
    try:
        is_revoked = known_hosts.is_revoked(key, hop.revoked_keys)
    except (OSError, ValueError) as error:
        # As OpenSSH: what cannot be looked up is not accepted.
        raise unreachable(
            host,
            f"whether the host key of {hop.host_key_name} is revoked cannot be told ({error})",
            f"make RevokedHostKeys of {hop.alias} in ssh_config a readable file of public keys",
        ) from error
    if is_revoked:
        raise unreachable(
            host,
            f"{hop.host_key_name} shows the host key {key.type} {key.fingerprint}, which {hop.revoked_keys} revokes",
            "nothing was sent there; ask whoever runs it for its new key",
        )


def _keep(hop: Hop, key: HostKey, host: str) -> Verdict:
    """At first use."""
    if hop.is_strict:
        raise unreachable(
            host,
            f"{hop.host_key_name} is in no known_hosts file, and StrictHostKeyChecking is yes; it shows {key.type} "
            f"{key.fingerprint}",
            f"compare that with its key on its own console, then add it: ssh {hop.by_hand}",
        )
    file = hop.known_hosts[0] if hop.known_hosts else NOWHERE
    if file == NOWHERE:
        raise unreachable(
            host,
            f"there is no file to keep the host key of {hop.host_key_name} in",
            f"give {hop.alias} a UserKnownHostsFile in ssh_config",
        )
    try:
        verdict = known_hosts.add(hop.host_key_name, key, file, hashes=hop.hashes_known_hosts)
    except OSError as error:
        raise unreachable(
            host,
            f"the host key of {hop.host_key_name} cannot be kept in {file} ({error.strerror or error})",
            f"make {file} writable",
        ) from error
    if verdict.kind == "known":
        LOG.warning(
            "%s is seen for the first time: its host key %s %s is kept in %s", host, key.type, key.fingerprint, file
        )
    return verdict
