"""Stages as threads: each takes, works, hands on; what it did with its time is kept; a death ends the whole line.

A stage that raises is remembered, and everything that the others wait at is closed, so that all of them stop where they
are. Whoever takes from the end of the line gets the error.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from dflashctl_remote.spec.events import StageLoad
from dflashctl_remote.trainer.queues import Closed

JOIN_S = 60.0
"""A stage in the middle of a batch may take so long to come to its end."""


class Closable(Protocol):
    def close(self) -> None: ...


class Load:
    """What one stage did with its time. Written by its own thread, read by others."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.busy_s = 0.0
        self.starved_s = 0.0
        """Waiting for something to work on."""
        self.held_up_s = 0.0
        """Waiting for room to put it."""
        self.num_done = 0

    @contextmanager
    def starved(self) -> Iterator[None]:
        began_s = time.perf_counter()
        yield
        self.starved_s += time.perf_counter() - began_s

    @contextmanager
    def busy(self) -> Iterator[None]:
        began_s = time.perf_counter()
        yield
        self.busy_s += time.perf_counter() - began_s
        self.num_done += 1

    @contextmanager
    def held_up(self) -> Iterator[None]:
        began_s = time.perf_counter()
        yield
        self.held_up_s += time.perf_counter() - began_s


class Line:
    """The running stages. Use as a context: at its end every thread has ended."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._places: list[Closable] = []
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._before: dict[str, tuple[float, float, float]] = {}
        self.loads: list[Load] = []

    def keep(self, *places: Closable) -> None:
        """Queues and buffers that are to be closed with the line."""
        self._places += places

    def start(self, name: str, body: Callable[[Load], None]) -> None:
        """Run `body` in a thread of its own; it loops until it raises Closed."""
        load = Load(name)
        self.loads.append(load)
        thread = threading.Thread(target=self._run, args=(body, load), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def raise_if_broken(self) -> None:
        """Raise what ended a stage, with that stage's own traceback."""
        if self._error is not None:
            raise self._error

    def taken(self, since_s: float) -> tuple[StageLoad, ...]:
        """Shares of the last `since_s` seconds, up to the call before; stages of one kind together."""
        kinds: dict[str, list[float]] = {}
        for load in self.loads:
            now = (load.busy_s, load.starved_s, load.held_up_s)
            before = self._before.get(load.name, (0.0, 0.0, 0.0))
            self._before[load.name] = now
            sums = kinds.setdefault(load.name.partition(" ")[0], [0.0, 0.0, 0.0, 0.0])
            for index in range(3):
                sums[index] += now[index] - before[index]
            sums[3] += 1
        return tuple(
            StageLoad(
                name=kind,
                count=int(count),
                busy=min(1.0, busy / (count * since_s)),
                starved=min(1.0, starved / (count * since_s)),
                held_up=min(1.0, held_up / (count * since_s)),
            )
            for kind, (busy, starved, held_up, count) in kinds.items()
        )

    def close(self) -> None:
        for place in self._places:
            place.close()
        for thread in self._threads:
            thread.join(timeout=JOIN_S)

    def _run(self, body: Callable[[Load], None], load: Load) -> None:
        try:
            body(load)
        except Closed:
            return
        except BaseException as error:  # noqa: BLE001 - handed on by raise_if_broken
            with self._lock:
                if self._error is None:
                    self._error = error
            for place in self._places:
                place.close()


def limiting(stages: tuple[StageLoad, ...]) -> str | None:
    """The stage that sets the pace: the busiest; None while nothing has been measured."""
    return max(stages, key=lambda stage: stage.busy).name if any(stage.busy for stage in stages) else None
