"""How sure a pooled tau is: tokens of one answer hang together, so what is drawn again is whole prompts."""

import random
from collections.abc import Sequence

NUM_RESAMPLES = 1000
CONFIDENCE = 0.95
MIN_PROMPTS = 5


def tau_interval(steps_of_prompts: Sequence[Sequence[int]], *, seed: int = 0) -> tuple[float, float] | None:
    """95 % percentile interval of tokens / verify steps, by a seeded bootstrap over prompts.

    Takes each prompt's tokens emitted a step. None of fewer than five prompts, or where nothing was drafted.
    """
    sums = [(sum(steps), len(steps)) for steps in steps_of_prompts]
    if len(sums) < MIN_PROMPTS or not any(num_steps for _, num_steps in sums):
        return None
    draw = random.Random(seed)
    taus = []
    for _ in range(NUM_RESAMPLES):
        drawn = draw.choices(sums, k=len(sums))
        num_steps = sum(steps for _, steps in drawn)
        if num_steps:
            taus.append(sum(tokens for tokens, _ in drawn) / num_steps)
    taus.sort()
    return _quantile(taus, (1 - CONFIDENCE) / 2), _quantile(taus, (1 + CONFIDENCE) / 2)


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Linear between the two nearest."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
