"""The definitions of every figure, as plain functions of recorded times, sizes and counters. Nothing is assumed here:
what cannot be had from its inputs is None.
"""

import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from dflashctl.engines.base import SpecCounters
from dflashctl.stages.bench.account import RequestRecord
from dflashctl_remote.spec.base import Spec

T = TypeVar("T")

NUM_RESAMPLES = 1000
CONFIDENCE = 0.95
MIN_FOR_INTERVAL = 5
"""Fewer values than these say nothing of their spread."""


class Interval(Spec):
    """Of 95 % confidence."""

    low: float
    high: float


def ttft_s(request: RequestRecord, *, is_open_loop: bool) -> float | None:
    """To the first chunk with a token: from the intended arrival in an open loop, from sending in a closed one."""
    if request.first_s is None:
        return None
    return request.first_s - (request.intended_s if is_open_loop else request.sent_s)


def e2e_s(request: RequestRecord, *, is_open_loop: bool) -> float | None:
    """To the last chunk with a token; the same start as `ttft_s`."""
    if request.last_s is None:
        return None
    return request.last_s - (request.intended_s if is_open_loop else request.sent_s)


def num_first_tokens(request: RequestRecord) -> int:
    """Tokens in the first chunk; 1 where the server does not tell."""
    return request.chunk_sizes_tokens[0] if request.chunk_sizes_tokens else 1


def num_decoded_tokens(request: RequestRecord) -> int | None:
    """Tokens after the first chunk; None if usage is missing or nothing came after it."""
    if request.num_output_tokens is None or len(request.chunk_times_s) < 2:
        return None
    num = request.num_output_tokens - num_first_tokens(request)
    return num if num > 0 else None


def decode_s(request: RequestRecord) -> float | None:
    """From the first chunk to the last."""
    if request.first_s is None or request.last_s is None or len(request.chunk_times_s) < 2:
        return None
    return request.last_s - request.first_s


def tpot_s(request: RequestRecord) -> float | None:
    """(t_last - t_first) / (n - n_first): the tokens of the first chunk took no decode time."""
    num, seconds = num_decoded_tokens(request), decode_s(request)
    return None if num is None or seconds is None or seconds <= 0 else seconds / num


def chunk_gaps_s(request: RequestRecord) -> tuple[float, ...]:
    """What a reader sees as stutter; with several tokens a chunk it is not the time per token."""
    times = request.chunk_times_s
    return tuple(later - earlier for earlier, later in itertools.pairwise(times))


def quantile(values: Sequence[float], share: float) -> float:
    """Linear between the two nearest; of at least one value."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(math.log(value) for value in values) / len(values))


def bootstrap(values: Sequence[T], statistic: Callable[[Sequence[T]], float | None], *, seed: int) -> Interval | None:
    """Percentile interval of the statistic over resamples of the values; None of too few, or if it has no value."""
    if len(values) < MIN_FOR_INTERVAL:
        return None
    draw = random.Random(seed)
    found = [statistic(draw.choices(values, k=len(values))) for _ in range(NUM_RESAMPLES)]
    numbers = [value for value in found if value is not None]
    if not numbers:
        return None
    return Interval(low=quantile(numbers, (1 - CONFIDENCE) / 2), high=quantile(numbers, (1 + CONFIDENCE) / 2))


def pooled(parts: Sequence[SpecCounters]) -> SpecCounters:
    """Sums, position by position."""
    length = max((len(part.accepted_per_position) for part in parts), default=0)
    by_position = [0] * length
    for part in parts:
        for position, value in enumerate(part.accepted_per_position):
            by_position[position] += value
    return SpecCounters(
        sum(part.num_drafts for part in parts),
        sum(part.num_draft_tokens for part in parts),
        sum(part.num_accepted_tokens for part in parts),
        tuple(by_position),
    )


def pooled_tau(parts: Sequence[SpecCounters]) -> float | None:
    """`pooled(parts).tau`, without the rest: an interval asks for it thousands of times."""
    num_drafts = sum(part.num_drafts for part in parts)
    return 1 + sum(part.num_accepted_tokens for part in parts) / num_drafts if num_drafts else None


def acceptance_by_position(seen: SpecCounters) -> tuple[tuple[float, float | None], ...]:
    """(unconditional, conditional) a position: steps accepted up to it / all steps, and / those accepted before it.

    Conditional is None where no step came that far.
    """
    if not seen.num_drafts:
        return ()
    before = (seen.num_drafts, *seen.accepted_per_position)
    return tuple(
        (here / seen.num_drafts, here / came if came else None)
        for here, came in zip(seen.accepted_per_position, before, strict=False)
    )


def first_difference(one: Sequence[object], other: Sequence[object]) -> int | None:
    """The first index at which they differ, the end of the shorter included; None: equal."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return None if len(one) == len(other) else min(len(one), len(other))


def step_cost(decode_spec_s: float, num_steps: int, decode_base_s: float, num_base_tokens: int) -> float | None:
    """How many plain decode steps one draft-and-verify step costs; tau must be above it to gain anything."""
    if not num_steps or not num_base_tokens or decode_base_s <= 0:
        return None
    return (decode_spec_s / num_steps) / (decode_base_s / num_base_tokens)


def difference(before: float, before_ci: Interval, after: float, after_ci: Interval) -> Interval:
    """Interval of after - before of two independent figures: square-and-add of their intervals (MOVER; Zou and
    Donner, Statistics in Medicine 2008).
    """
    change = after - before
    low = math.hypot(after - after_ci.low, before_ci.high - before)
    high = math.hypot(after_ci.high - after, before - before_ci.low)
    return Interval(low=change - low, high=change + high)
