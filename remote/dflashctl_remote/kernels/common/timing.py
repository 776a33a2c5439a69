"""Times several ways of doing the same on a GPU, in turns, so that clocks and heat favour none of them."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from dflashctl_remote.spec.kernels import Arm


@dataclass(frozen=True)
class Way:
    """One arm: `run` does the work once and leaves nothing behind."""

    name: str
    role: Literal["ours", "floor", "other"]
    run: Callable[[], object]
    detail: str = ""


def time_ways(ways: Sequence[Way], device: torch.device, *, num_rounds: int = 6) -> tuple[Arm, ...]:
    """Median and quartiles of 2 * num_rounds runs each, A B C C B A; peak memory of a run on its own.

    A way that runs out of memory gives an arm without figures that says so.
    """
    memory = {way.name: _extra_bytes(way, device) for way in ways}
    able = [way for way in ways if memory[way.name] is not None]
    times: dict[str, list[float]] = {way.name: [] for way in able}
    for _ in range(num_rounds):
        for way in (*able, *reversed(able)):
            times[way.name].append(_milliseconds(way))
    return tuple(_arm(way, times.get(way.name), memory[way.name]) for way in ways)


def unmeasured(name: str, why: str) -> Arm:
    return Arm(name=name, role="other", detail=why)


def _extra_bytes(way: Way, device: torch.device) -> int | None:
    """After two runs that compile what is to be compiled. None if the memory is not enough."""
    try:
        for _ in range(2):
            way.run()
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        way.run()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device) - before)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return None


def _milliseconds(way: Way) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    way.run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def _arm(way: Way, times: list[float] | None, extra_bytes: int | None) -> Arm:
    if times is None:
        return Arm(name=way.name, role=way.role, detail="out of memory")
    low, median, high = statistics.quantiles(times, n=4)
    return Arm(
        name=way.name,
        role=way.role,
        median_ms=median,
        low_ms=low,
        high_ms=high,
        num_runs=len(times),
        extra_bytes=extra_bytes,
        detail=way.detail,
    )
