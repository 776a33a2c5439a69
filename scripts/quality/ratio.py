"""How sure the ratio of two taus on the same prompts is: whole prompts are drawn again, the same for both. Pure."""

import random
from collections.abc import Sequence

NUM_RESAMPLES = 2000
MIN_PROMPTS = 5
Steps = Sequence[int]
"""Tokens emitted by each verify step of one answer."""


def tau_ratio(
    ours: Sequence[Steps], theirs: Sequence[Steps], *, seed: int = 0
) -> tuple[float, float | None, float | None]:
    """(ratio of pooled taus, low, high): 95 % percentile interval of a paired bootstrap by prompt.

    The bounds are None for fewer than five prompts. Raises ValueError if the prompts are not the same in number, or
    one side has no verify step.
    """
    if len(ours) != len(theirs):
        raise ValueError(f"wanted the same prompts, found {len(ours)} and {len(theirs)}")
    pairs = [((sum(a), len(a)), (sum(b), len(b))) for a, b in zip(ours, theirs, strict=True)]
    whole = _ratio(pairs)
    if whole is None:
        raise ValueError("one side has no verify step")
    if len(pairs) < MIN_PROMPTS:
        return whole, None, None
    draw = random.Random(seed)
    drawn = (_ratio(draw.choices(pairs, k=len(pairs))) for _ in range(NUM_RESAMPLES))
    ratios = sorted(ratio for ratio in drawn if ratio is not None)
    return whole, _quantile(ratios, 0.025), _quantile(ratios, 0.975)


def _ratio(pairs: Sequence[tuple[tuple[int, int], tuple[int, int]]]) -> float | None:
    tokens_a, steps_a = (sum(pair[0][i] for pair in pairs) for i in (0, 1))
    tokens_b, steps_b = (sum(pair[1][i] for pair in pairs) for i in (0, 1))
    if not steps_a or not steps_b or not tokens_b:
        return None
    return (tokens_a / steps_a) / (tokens_b / steps_b)


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
