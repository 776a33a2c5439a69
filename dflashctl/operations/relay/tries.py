"""Trying again after a link was lost or a source has changed, as long as that may help."""

from collections.abc import Callable
from typing import TypeVar

from dflashctl.errors import ArtifactError, DflashctlError, HostUnreachable
from dflashctl.operations.relay.agent import AgentRefused
from dflashctl.operations.relay.progress import Progress

Say = Callable[[str], None]
Given = TypeVar("Given")
DELAYS_S = (1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 20.0, 20.0)
"""Between tries that moved nothing; one that moved something begins anew."""
NUM_CHANGES = 3
"""So often a source may change under our hands."""


class Again(Exception):
    """The source is not what was looked at: look again. What has come of other files counts."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class Overtaken(Exception):
    """Another relay has published there while this one waited: look again."""


def until_done(
    attempt: Callable[[int], Given],
    progress: Progress,
    say: Say,
    pause: Callable[[float], None],
    *,
    helps: Callable[[HostUnreachable], bool] = lambda error: True,
) -> Given:
    """`attempt` is given which one it is, from 1 on; `helps`: whether a host that is away is worth waiting for.

    Raises what it raises, but for what helps to try again: an agent's refusal as its `as_error` has it.
    """
    num_tries = num_changes = num_idle = most_bytes = 0
    while True:
        num_tries += 1
        try:
            return attempt(num_tries)
        except Again as again:
            num_changes += 1
            if num_changes > NUM_CHANGES:
                raise ArtifactError(
                    f"{again.text}, again and again while it was relayed", hint="relay what is finished"
                ) from again
            say(f"{again.text}: that is sent again")
        except Overtaken:
            pass
        except (AgentRefused, HostUnreachable) as problem:
            error: DflashctlError = problem.as_error() if isinstance(problem, AgentRefused) else problem
            if not isinstance(error, HostUnreachable) or not helps(error):
                raise error from problem
            # What was sent and never came to its place is no way forward.
            num_idle = 0 if progress.done_bytes > most_bytes else num_idle + 1
            most_bytes = max(most_bytes, progress.done_bytes)
            if num_idle > len(DELAYS_S):
                raise error from problem
            delay_s = DELAYS_S[max(0, num_idle - 1)]
            say(f"{error.message}; trying again in {delay_s:g} s")
            pause(delay_s)
        finally:
            progress.pause()
