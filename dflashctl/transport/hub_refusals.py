"""What a hub's refusals mean, as one sentence with what to do next, and how often to ask again.

Nothing that the hub wrote is repeated: it knows the token, and could put it there.
"""

import re
from collections.abc import Callable, Mapping

from dflashctl.errors import ArtifactError, ConfigError, DflashctlError, HostUnreachable
from dflashctl.transport.hub_place import Hub, HubPlace

MOST_TRIES = 6
MOST_WAIT_S = 300.0
"""The hub counts requests in windows of five minutes: https://huggingface.co/docs/hub/rate-limits."""
PASSING = (408, 429, 500, 502, 503, 504)
"""Status codes after which the same question may be answered."""
_RESET = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d+)")
_BAD_TOKEN = "Invalid credentials in Authorization header"


class NotThere(ArtifactError):
    """The repository and the revision are there, the path in it is not."""


class Patience:
    """How often a question may be asked again, and after what wait. Of one question; the wait is handed in."""

    def __init__(self, wait: Callable[[float], None]) -> None:
        self._wait = wait
        self._num_tries = 1
        self._left_s = 2 * MOST_WAIT_S

    def pause(self, problem: DflashctlError, asked_s: float | None = None) -> None:
        """Wait as long as the other side asks for, or a little longer each time. Raises `problem` when it is enough."""
        wait_s = min(0.5 * 2.0 ** (self._num_tries - 1), 8.0) if asked_s is None else asked_s
        if self._num_tries >= MOST_TRIES or wait_s > min(MOST_WAIT_S, self._left_s):
            raise problem
        self._num_tries += 1
        self._left_s -= wait_s
        self._wait(wait_s)


def asked_wait_s(headers: Mapping[str, str]) -> float | None:
    """Seconds, of Retry-After or of the RateLimit header. Names of headers may be of any case."""
    told = {name.lower(): value for name, value in headers.items()}
    after = told.get("retry-after", "").strip()
    # Digits of other alphabets and numbers longer than a float has no place for are no wait.
    if after.isascii() and after.isdigit():
        return float(after[:12])
    reset = _RESET.search(told.get("ratelimit", ""))
    return float(reset[1][:12]) + 1.0 if reset else None


def busy(hub: Hub, place: HubPlace, status: int, asked_s: float | None) -> HostUnreachable:
    if status != 429:
        reason = f"answers with status {status}"
        return HostUnreachable(f"{hub.host} {reason} to questions for {place}", host=hub.host, hint="try again later")
    wait = "" if asked_s is None else f" and asks to wait {asked_s:.0f} s"
    who = f"use a token of another account than that in {hub.token_variable}" if hub.token else _with_token(hub)
    return HostUnreachable(
        f"{hub.host} was asked too often{wait} before more of {place}",
        host=hub.host,
        hint=f"start again after that, what is there is kept; or {who}, which may ask more often",
    )


def no_answer(hub: Hub, error: BaseException) -> HostUnreachable:
    """`error` is of the network: the text of one never holds a header."""
    return HostUnreachable(
        f"{hub.host} cannot be reached: {str(error).strip() or type(error).__name__}",
        host=hub.host,
        hint="check network, proxy and DNS here; HF_ENDPOINT names a mirror",
    )


def refusal(  # noqa: PLR0911 - a table reads from top to bottom
    hub: Hub, place: HubPlace, status: int, headers: Mapping[str, str]
) -> DflashctlError:
    """What a status of 400 or more, that does not pass, means for who wanted to read this place."""
    told = {name.lower(): value for name, value in headers.items()}
    code = told.get("x-error-code", "")
    page = f"{hub.endpoint}/{place.page}"
    if code == "GatedRepo":
        return _gated(hub, place, page)
    if told.get("x-error-message") == "Access to this resource is disabled.":
        return ConfigError(f"{place} is disabled on {hub.host}", hint="take another repository")
    if status == 401 and hub.token and (not code or told.get("x-error-message") == _BAD_TOKEN):
        return ConfigError(
            f"{hub.host} does not know the token in {hub.token_variable}",
            hint="make a new one that may read repositories, or unset the variable for what is public",
        )
    if code == "RevisionNotFound":
        return ConfigError(
            f"{page} has no revision {place.revision or 'main'!r}",
            hint="look at its branches, tags and commits on that page, or leave @revision away",
        )
    if code == "EntryNotFound":
        return NotThere(f"{place} is not there", hint=f"look at {page}/tree/{place.revision or 'main'}")
    if code == "RepoNotFound" or status in (401, 404):
        return _not_found(hub, place)
    if status == 403:
        return ConfigError(
            f"{hub.host} does not let the token in {hub.token_variable} read {place}"
            if hub.token
            else f"{hub.host} lets nobody without a token read {place}",
            hint=f"give the token the right to read that repository, or {_with_token(hub)}",
        )
    return ArtifactError(f"{hub.host} answers with status {status} for {place}", hint=f"look at {page}")


def _gated(hub: Hub, place: HubPlace, page: str) -> ConfigError:
    other = "or take another repository with the same files"
    if hub.token:
        return ConfigError(
            f"{place} is gated, and the account of the token in {hub.token_variable} was not given access",
            hint=f"ask for access on {page} with that account, name the variable of another account's token, {other}",
        )
    return ConfigError(
        f"{place} is gated, and no token was given",
        hint=f"ask for access on {page} and {_with_token(hub)} of that account, {other}",
    )


def _not_found(hub: Hub, place: HubPlace) -> ConfigError:
    if hub.token:
        return ConfigError(
            f"{hub.host} has no {place.kind} {place.repository} that the token in {hub.token_variable} may see",
            hint="check the name; datasets are hf://datasets/org/name; a private one needs a token of its members",
        )
    return ConfigError(
        f"{hub.host} shows no {place.kind} {place.repository} to who has no token",
        hint=f"check the name (datasets: hf://datasets/org/name); private ones look like this too: {_with_token(hub)}",
    )


def _with_token(hub: Hub) -> str:
    return f"set {hub.token_variable} to a token"
