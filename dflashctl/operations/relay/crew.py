"""Threads that share out work between them, for ends of a relay that answer slowly and one thing at a time."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
END_S = 3.0
"""So long after Ctrl-C they may go on with what they are at."""


def share_out(items: Iterable[Item], lanes: Sequence[Callable[[Item], None]], wake: Callable[[], None]) -> None:
    """Each lane takes the next item, again and again, in a thread of its own. Raises the first problem of any.

    After a problem all end with what they are at; `wake` is called so that whoever waits for a host gives up.
    """
    crew = _Crew(items, lanes)
    try:
        crew.wait()
    except BaseException:
        crew.stop()
        wake()
        crew.join(END_S)
        raise
    if crew.problems:
        wake()
    crew.join(None)
    if crew.problems:
        raise crew.problems[0]


class _Crew(Generic[Item]):
    def __init__(self, items: Iterable[Item], lanes: Sequence[Callable[[Item], None]]) -> None:
        self._coming = iter(items)
        self._changed = threading.Condition()
        self._is_over = False
        self._num_left = len(lanes)
        self.problems: list[BaseException] = []
        # Not waited for by the interpreter: one may hang in a store's answer while the user wants to leave.
        self._threads = [
            threading.Thread(target=self._work, args=(lane,), name=f"relay-crew-{number}", daemon=True)
            for number, lane in enumerate(lanes)
        ]
        for thread in self._threads:
            thread.start()

    def wait(self) -> None:
        """Until there is no more to do, or a problem."""
        with self._changed:
            while self._num_left and not self.problems:
                self._changed.wait(0.5)

    def stop(self) -> None:
        with self._changed:
            self._is_over = True

    def join(self, timeout_s: float | None) -> None:
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(None if end_s is None else max(0.0, end_s - time.monotonic()))

    def _work(self, lane: Callable[[Item], None]) -> None:
        try:
            while True:
                with self._changed:
                    item = None if self._is_over or self.problems else next(self._coming, None)
                if item is None:
                    return
                lane(item)
        except BaseException as error:  # noqa: BLE001  it is raised where they are waited for
            with self._changed:
                self.problems.append(error)
        finally:
            with self._changed:
                self._num_left -= 1
                self._changed.notify_all()
