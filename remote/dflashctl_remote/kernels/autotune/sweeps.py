"""What was tuned, when and by which thread: for a warm-up from one thread, and for the check that it was enough."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

_sweeps: list["Sweep"] = []


@dataclass(frozen=True)
class Sweep:
    """A key that an autotuner met for the first time: timed, read from Triton's cache on disk, or pruned to one."""

    kernel: str
    key: str
    thread: str
    seconds_s: float

    def __str__(self) -> str:
        return f"{self.kernel} for {self.key} in {self.seconds_s:.2f} s (thread {self.thread})"


class SweepWatch:
    """Tells what was tuned since it was made or last asked: after a warm-up that should be nothing."""

    def __init__(self) -> None:
        self._num_seen = len(_sweeps)

    def take(self) -> tuple[Sweep, ...]:
        new = tuple(_sweeps[self._num_seen :])
        self._num_seen += len(new)
        return new


def warm_up(calls: Iterable[Callable[[], object]]) -> tuple[Sweep, ...]:
    """Run each call in this thread, waiting for the GPU after each, and return what was tuned by that.

    To be done before other threads launch kernels: then no timing contains another's work, and no thread meets a
    cold key. Sound without any patch, as long as the calls meet every key that the run will meet.
    Whatever a call raises is raised.
    """
    watch = SweepWatch()
    for call in calls:
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return watch.take()


def add_sweep(kernel: str, key: object, seconds_s: float) -> None:
    _sweeps.append(Sweep(kernel, str(key), threading.current_thread().name, seconds_s))


@contextmanager
def recorded(autotuner: Any) -> Iterator[None]:
    """Notes a sweep if the cache of `autotuner` has grown by the end; one that raised left nothing there."""
    num_known = len(autotuner.cache)
    started_s = time.perf_counter()
    yield
    if len(autotuner.cache) > num_known:
        # The newest: what a hook of this sweep tuned was entered, and noted, before.
        key = next(reversed(autotuner.cache))
        add_sweep(autotuner.base_fn.__name__, key, time.perf_counter() - started_s)
