"""The races, each made to happen at will and without a GPU: two threads are led into the bad order by events.

What they return tells stock from patched; run them before and after `install`. Where a thread waits for another that a
lock holds back, it waits at most BLOCKED_S: that only bounds how long a safe arm takes, never what it returns.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any

from triton.runtime.autotuner import Autotuner, Config

from dflashctl_remote.kernels.autotune.install import is_replaced

BLOCKED_S = 0.1
LIMIT_S = 20.0
BLOCKS = (16, 32, 64)


class Launches:
    """Stands in for a jitted function: counts launches by the configuration's BLOCK."""

    def __init__(self) -> None:
        self.fn = _kernel
        self.by_block: Counter[int] = Counter()

    def run(self, *args: Any, **kwargs: Any) -> None:
        self.by_block[kwargs["BLOCK"]] += 1

    def warmup(self, *args: Any, **kwargs: Any) -> None:
        return None


class Buffer:
    """Stands in for a tensor: counts how often it was set to zero."""

    dtype = "float32"

    def __init__(self) -> None:
        self.num_zeroed = 0

    def zero_(self) -> None:
        self.num_zeroed += 1


def make_autotuner(bench: Callable[..., list[float]], *, autotuner_class: Any = Autotuner, **options: Any) -> Any:
    """Three configurations of BLOCK, tuned by N, timed by `bench(kernel_call, quantiles)`."""
    configs = [Config({"BLOCK": block}) for block in BLOCKS]
    reset = options.pop("reset_to_zero", None)
    return autotuner_class(Launches(), ["acc", "N", "BLOCK"], configs, ["N"], reset, None, do_bench=bench, **options)


@dataclass(frozen=True)
class Threads:
    """What each thread raised, in words; nothing for one that ended well."""

    errors: dict[str, str]


@dataclass(frozen=True)
class Crash(Threads):
    num_benches: int
    """Three configurations, each timed once: 3."""


def end_during_a_sweep() -> Crash:
    """One thread sweeps; another comes for the same key and ends before it. Stock: the first loses its arguments."""
    is_parked, is_over = threading.Event(), threading.Event()
    benches: Counter[str] = Counter()

    def bench(kernel_call: Callable[[], None], quantiles: Any = None) -> list[float]:
        name = threading.current_thread().name
        benches[name] += 1
        if name == "slow" and benches[name] == 1:
            is_parked.set()
            is_over.wait(BLOCKED_S if _is_held_back() else LIMIT_S)
        kernel_call()
        return [1.0, 1.0, 1.0]

    autotuner = make_autotuner(bench)

    def fast() -> None:
        is_parked.wait(LIMIT_S)
        try:
            autotuner.run(None, 128)
        finally:
            is_over.set()

    errors = run_threads({"slow": lambda: autotuner.run(None, 128), "fast": fast})
    return Crash(errors, benches.total())


@dataclass(frozen=True)
class Zeroings(Threads):
    first: int
    """Of the buffer of the thread that came first; alone: 4, one a configuration and one before the launch."""
    second: int


def zero_the_other_buffer() -> Zeroings:
    """Two threads sweep different keys with a buffer each. Stock: the first zeroes the other's, and says nothing."""
    is_first_parked, is_second_in, is_first_over = threading.Event(), threading.Event(), threading.Event()
    benches: Counter[str] = Counter()

    def bench(kernel_call: Callable[[], None], quantiles: Any = None) -> list[float]:
        name = threading.current_thread().name
        benches[name] += 1
        if name == "first" and benches[name] == 1:
            is_first_parked.set()
            is_second_in.wait(BLOCKED_S if _is_held_back() else LIMIT_S)
        if name == "second" and benches[name] == 1:
            is_second_in.set()
            is_first_over.wait(LIMIT_S)
        kernel_call()
        return [1.0, 1.0, 1.0]

    autotuner = make_autotuner(bench, reset_to_zero=["acc"])
    buffers = Buffer(), Buffer()

    def first() -> None:
        try:
            autotuner.run(buffers[0], 128)
        finally:
            is_first_over.set()

    def second() -> None:
        is_first_parked.wait(LIMIT_S)
        autotuner.run(buffers[1], 256)

    errors = run_threads({"first": first, "second": second})
    return Zeroings(errors, buffers[0].num_zeroed, buffers[1].num_zeroed)


def crowd_one_key(num_threads: int = 4) -> Crash:
    """Threads come for one cold key at once. Stock: each sweeps, and times its kernels against the others'."""
    crowd = threading.Barrier(num_threads)
    benches: Counter[str] = Counter()

    def bench(kernel_call: Callable[[], None], quantiles: Any = None) -> list[float]:
        name = threading.current_thread().name
        benches[name] += 1
        if benches[name] == 1:
            with suppress(threading.BrokenBarrierError):
                crowd.wait(BLOCKED_S if _is_held_back() else LIMIT_S)
        kernel_call()
        return [1.0, 1.0, 1.0]

    autotuner = make_autotuner(bench)
    errors = run_threads({f"thread {i}": lambda: autotuner.run(None, 128) for i in range(num_threads)})
    return Crash(errors, benches.total())


def append_while_iterating(tensor_cache: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Threads:
    """One thread looks through a tensor cache; another adds an entry meanwhile. Stock: the first fails."""
    is_parked, is_written = threading.Event(), threading.Event()

    class ParkingKey(str):
        """The name of an argument, whose comparison in the cache waits for the other thread."""

        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            if threading.current_thread().name == "reader":
                is_parked.set()
                is_written.wait(LIMIT_S)
            return str.__eq__(self, other)

    cached = tensor_cache(lambda **named: object())

    def reader() -> None:
        try:
            for _ in range(2):
                cached(**{ParkingKey("tensor"): object()})
        finally:
            is_parked.set()

    def writer() -> None:
        is_parked.wait(LIMIT_S)
        try:
            cached(tensor=object())
        finally:
            is_written.set()

    return Threads(run_threads({"reader": reader, "writer": writer}))


def identity_cache(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Has the shape of fla 0.6.0's `tensor_cache`: a bounded deque in a closure, arguments compared by identity."""
    entries: deque[Any] = deque(maxlen=4)

    @wraps(fn)
    def cached(*args: Any, **named: Any) -> Any:
        for entry in entries:
            is_same_count = len(entry[0]) == len(args) and len(entry[1]) == len(named)
            if (
                is_same_count
                and all(mine is theirs for mine, theirs in zip(args, entry[0], strict=True))
                and all(name in entry[1] and entry[1][name] is value for name, value in named.items())
            ):
                return entry[2]
        result = fn(*args, **named)
        entries.append((args, named, result))
        return result

    return cached


def run_threads(bodies: dict[str, Callable[[], object]], limit_s: float = LIMIT_S) -> dict[str, str]:
    """Run each in a thread of that name; what they raised, by name. AssertionError if one doesn't end."""
    errors: dict[str, str] = {}

    def run(name: str, body: Callable[[], object]) -> None:
        try:
            body()
        except Exception as error:  # noqa: BLE001 - what it raises is the result
            errors[name] = f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=run, args=item, name=item[0], daemon=True) for item in bodies.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit_s)
        assert not thread.is_alive(), f"{thread.name} did not end"
    return errors


def _is_held_back() -> bool:
    """Whether a thread that comes during a sweep is expected to wait for its end."""
    return is_replaced(Autotuner, "run")


def _kernel(acc: Any, N: int, BLOCK: int) -> None:
    """What an autotuner asks for its name and arguments."""
