"""The learning rate as a pure function of the step, so that a resume has no schedule to restore."""

import math

from dflashctl_remote.spec.train import OptimSpec


def lr_at(step: int, num_steps: int, optim: OptimSpec) -> float:
    """Learning rate of optimizer step `step`, counted from 1 to `num_steps`.

    Linear warm-up over the first round(warmup_fraction * num_steps) steps, reaching learning_rate at the last
    of them; then half a cosine that reaches min_lr_fraction * learning_rate at `num_steps`.
    """
    assert 1 <= step <= num_steps, f"step {step} of {num_steps}"
    num_warmup = round(optim.warmup_fraction * num_steps)
    if step <= num_warmup:
        return optim.learning_rate * step / num_warmup
    done = (step - num_warmup) / (num_steps - num_warmup)
    cosine = 0.5 * (1.0 + math.cos(math.pi * done))
    return optim.learning_rate * (optim.min_lr_fraction + (1.0 - optim.min_lr_fraction) * cosine)
