"""How a run's loss has gone, from a sample of its steps: a rise must be seen by whoever looks. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from dflashctl_remote.spec.events import Step

WINDOW = 40
"""Steps in each mean; single steps are noise."""
RISE = 1.03
"""A mean that is so many times the lowest before it has risen, if it is not noise."""
SIGMAS = 3.5
"""The lowest of many means is low by chance too: so many standard errors of the difference are no chance."""
PLATEAU = 0.1
"""Of the run so far: how long ago the mean is that a falling loss is compared with."""


@dataclass(frozen=True)
class Trend:
    loss: float
    """Mean of the last steps, nats."""
    text: str
    warning: str


@dataclass(frozen=True)
class _Mean:
    step: int
    """In its middle."""
    loss: float
    error: float
    """Standard error."""


def trend(pieces: Sequence[Sequence[Step]]) -> Trend | None:
    """From runs of consecutive steps, oldest first; None without any step."""
    last = next((piece[-1] for piece in reversed(pieces) if piece), None)
    if last is None:
        return None
    means = [mean for piece in pieces for mean in _means(piece)]
    if len(means) < 2:
        return Trend(last.loss, f"{last.loss:.3f} (one step; too few for a trend)", "")
    now, lowest = means[-1], min(means[:-1], key=lambda mean: mean.loss)
    text = f"{now.loss:.3f} (mean of {WINDOW} steps), "
    if now.loss < lowest.loss:
        before = next((mean for mean in reversed(means[:-1]) if mean.step <= (1 - PLATEAU) * now.step), means[0])
        return Trend(now.loss, f"{text}the lowest so far, {now.loss - before.loss:+.3f} since step {before.step:,}", "")
    text += f"{now.loss - lowest.loss:+.3f} above the lowest, {lowest.loss:.3f} around step {lowest.step:,}"
    if now.loss - lowest.loss <= SIGMAS * math.hypot(now.error, lowest.error):
        return Trend(now.loss, f"{text}, within the noise of its steps", "")
    if now.loss <= RISE * lowest.loss:
        return Trend(now.loss, text, "")
    return Trend(now.loss, text, f"rising: {lowest.loss:.3f} -> {now.loss:.3f} since step {lowest.step:,}")


def pace_s(steps: Sequence[Step]) -> float | None:
    """Mean seconds a step over consecutive steps of one process; None if they do not tell."""
    if len(steps) < 2 or steps[-1].step <= steps[0].step:
        return None
    return (steps[-1].at_s - steps[0].at_s) / (steps[-1].step - steps[0].step)


def _means(steps: Sequence[Step]) -> list[_Mean]:
    """Of whole windows, counted from the end."""
    means = []
    for end in range(len(steps), WINDOW - 1, -WINDOW):
        losses = [step.loss for step in steps[end - WINDOW : end]]
        middle = steps[end - WINDOW // 2 - 1].step
        means.append(_Mean(middle, fmean(losses), stdev(losses) / math.sqrt(WINDOW)))
    return means[::-1]
