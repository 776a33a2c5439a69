"""One question to many hosts at once: answers as they come, and no host waits for another."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from dflashctl.errors import DflashctlError, HostUnreachable
from dflashctl.transport.shell import Shell

NUM_AT_ONCE = 8
"""sshd refuses some of those that greet it at the same time from ten on (MaxStartups)."""
STAGGER_S = 0.05
"""After the first ones, one more each: none waits for those before it to succeed or fail."""
T = TypeVar("T")


def fan_out(
    shells: Sequence[Shell], question: Callable[[Shell], T], timeout_s: float
) -> Iterator[tuple[str, T | DflashctlError]]:
    """Each host's name with its answer or its error, the first to answer first; all are asked at the call.

    What has not answered in time comes last, as HostUnreachable. Other exceptions of `question` are raised here.
    """
    answers: queue.SimpleQueue[tuple[int, T | Exception]] = queue.SimpleQueue()
    deadline_s = time.monotonic() + timeout_s
    for number, shell in enumerate(shells):
        delay_s = max(0, number + 1 - NUM_AT_ONCE) * STAGGER_S
        # Daemons: a host that never answers does not keep the command from ending.
        threading.Thread(
            target=_ask, args=(number, shell, question, delay_s, answers), name=f"ask-{shell.name}", daemon=True
        ).start()
    return _collect(shells, answers, deadline_s, timeout_s)


def _ask(
    number: int,
    shell: Shell,
    question: Callable[[Shell], T],
    delay_s: float,
    answers: "queue.SimpleQueue[tuple[int, T | Exception]]",
) -> None:
    if delay_s:
        time.sleep(delay_s)
    try:
        answers.put((number, question(shell)))
    except Exception as error:  # noqa: BLE001 - handed to whoever asked
        answers.put((number, error))


def _collect(
    shells: Sequence[Shell],
    answers: "queue.SimpleQueue[tuple[int, T | Exception]]",
    deadline_s: float,
    timeout_s: float,
) -> Iterator[tuple[str, T | DflashctlError]]:
    waiting = set(range(len(shells)))
    while waiting:
        try:
            number, answer = answers.get(timeout=max(0.0, deadline_s - time.monotonic()))
        except queue.Empty:
            break
        waiting.remove(number)
        if isinstance(answer, Exception) and not isinstance(answer, DflashctlError):
            raise answer
        yield shells[number].name, answer
    for number in sorted(waiting):
        name = shells[number].name
        yield (
            name,
            HostUnreachable(
                f"{name} did not answer within {timeout_s:g} s", host=name, hint=f"dflashctl hosts check {name}"
            ),
        )
