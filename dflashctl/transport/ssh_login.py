"""Logging in to a host that has proven who it is: one key after the other, and what to say if none fits."""

import time

from paramiko import AuthenticationException, BadAuthenticationType, SSHException, Transport

from dflashctl.errors import HostUnreachable
from dflashctl.transport.ssh_config import Hop
from dflashctl.transport.ssh_keys import Candidate, Keys
from dflashctl.transport.unreachable import listed, place, said, unreachable

LOGIN_S = 20.0


def log_in(transport: Transport, hop: Hop, host: str) -> None:
    """Raises HostUnreachable, saying `host`, with the keys that were tried and why others could not be."""
    _Login(transport, hop, host).run()


class _Login:
    def __init__(self, transport: Transport, hop: Hop, host: str) -> None:
        self._transport, self._hop, self._host = transport, hop, host
        self._keys = Keys(hop)
        self._tried: list[str] = []

    def run(self) -> None:
        deadline_s = time.monotonic() + LOGIN_S
        candidates = self._keys.candidates()
        try:
            for candidate in candidates:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    raise self._refused(f"no key was accepted within {LOGIN_S:g} s")
                self._transport.auth_timeout = left_s
                if self._is_accepted(candidate):
                    return
        finally:
            candidates.close()
        self._without_a_key()

    def _is_accepted(self, candidate: Candidate) -> bool:
        self._tried.append(candidate.where)
        try:
            more = self._transport.auth_publickey(self._hop.user, candidate.key)
        except BadAuthenticationType as error:
            raise self._refused(f"it takes {listed(error.allowed_types)}, and no keys") from error
        except (SSHException, OSError, EOFError) as error:
            if not self._transport.is_active():
                raise self._cut(error) from error
            if not isinstance(error, AuthenticationException):
                self._keys.refusals.append(f"{candidate.where} could not be used ({said(error)})")
            return False
        if more:
            raise self._refused(f"beside a key it wants {listed(more)}, which takes somebody at the keyboard")
        return True

    def _without_a_key(self) -> None:
        """Some hosts know who comes by the way that it takes, and ask for nothing."""
        try:
            self._transport.auth_none(self._hop.user)
        except BadAuthenticationType as error:
            takes = error.allowed_types
            is_a_matter_of_keys = self._tried and "publickey" in takes
            raise self._refused(
                "no key was accepted" if is_a_matter_of_keys else f"it takes {listed(takes)}"
            ) from error
        except (SSHException, OSError, EOFError) as error:
            raise self._refused("no key was accepted") from error

    def _cut(self, error: Exception) -> HostUnreachable:
        if not isinstance(error, (AuthenticationException, EOFError, ConnectionError)):
            return self._refused(f"the login broke off at {self._tried[-1]} ({said(error)})")
        if len(self._tried) > 1:
            return self._refused(
                f"it hung up after {len(self._tried)} keys, and the right one has to come sooner "
                "(IdentityFile with IdentitiesOnly)"
            )
        return self._refused(f"it hung up ({said(error)})")

    def _refused(self, reason: str) -> HostUnreachable:
        hop = self._hop
        keys = f"tried {listed(self._tried)}" if self._tried else "there was no key to try, in the agent or a file"
        return unreachable(
            self._host,
            f"{place(hop)} does not let {hop.user} in: {'; '.join((reason, keys, *self._keys.refusals))}",
            f"ssh -v {hop.by_hand}; check user and key in hosts.yaml or ssh_config, and authorized_keys there",
        )
