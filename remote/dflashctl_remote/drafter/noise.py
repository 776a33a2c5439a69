"""Noise on the tapped states that the drafter reads, so that it learns to bear what its own drafts do to them. Never on
a state that labels come from: it is added to a copy, in the drafter's stage, after the labels were made.

Element (t, f) of batch n is a function of (seed, n, t, f) alone and the same on every device: integers from a counter
(the finalizer of SplitMix64, with a second key between its rounds), four 16-bit numbers out of each, and a table of
65536 values made once on the CPU. No generator is advanced, so a resumed run, another number of threads or another
split into chunks changes nothing. Philox in torch's integer operations would take about ten times the operations.
Axes: T context tokens, F = taps * D tapped width.
Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, for the finalizer.
"""

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from dflashctl_remote.spec.objective import NoiseName, ObjectiveSpec

CHUNK_ELEMENTS = 1 << 24
"""Elements whose integers exist at a time: 32 MiB of counters and a little more beside them."""

_LEVELS = 1 << 16
_GOLDEN, _FIRST, _SECOND = (value - (1 << 64) for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True)
class ContextNoise:
    """The noise of one batch."""

    kind: NoiseName
    std: float
    """Standard deviation, relative to the root mean square of a token's state at one tap."""
    seed: int
    sequence: int
    """The batch's number in the run."""

    @torch.no_grad()
    def added_to(self, taps_TF: Tensor, num_taps: int) -> Tensor:
        """A noisy copy in the states' dtype; the argument is never written.

        Each token is measured at each tap by itself: taps differ in size by an order of magnitude, first tokens
        by more, and neither padding nor neighbours may change what a token gets.
        """
        noisy_TF = torch.empty_like(taps_TF)
        rows = max(1, CHUNK_ELEMENTS // max(1, taps_TF.shape[1]))
        for start in range(0, taps_TF.shape[0], rows):
            part = taps_TF[start : start + rows].float().unflatten(1, (num_taps, -1))
            rms = part.square().mean(dim=2, keepdim=True).sqrt()
            unit = unit_noise(
                self.kind,
                start,
                part.shape[0],
                taps_TF.shape[1],
                seed=self.seed,
                sequence=self.sequence,
                device=taps_TF.device,
            ).view_as(part)
            noisy_TF[start : start + rows] = torch.addcmul(part, unit, rms, value=self.std).flatten(1)
        return noisy_TF


def context_noise(objective: ObjectiveSpec, *, seed: int, sequence: int, num_batches: int) -> ContextNoise | None:
    """The noise of batch `sequence`, counted from 0, of the `num_batches` of the whole run; None without noise."""
    if objective.context_noise_std == 0:
        return None
    std = noise_std_at(objective, sequence, num_batches)
    return ContextNoise(objective.context_noise, std, seed, sequence)


def noise_std_at(objective: ObjectiveSpec, sequence: int, num_batches: int) -> float:
    """Half a cosine from context_noise_std at batch 0 to context_noise_end_std at the last; constant without an end."""
    start, end = objective.context_noise_std, objective.context_noise_end_std
    if end is None or num_batches <= 1:
        return start
    done = min(sequence / (num_batches - 1), 1.0)
    return end + (start - end) * 0.5 * (1.0 + math.cos(math.pi * done))


def unit_noise(
    kind: NoiseName, first: int, num_rows: int, width: int, *, seed: int, sequence: int, device: torch.device
) -> Tensor:
    """Rows `first` to `first + num_rows` of the batch's noise, mean 0 and variance 1: fp32 [num_rows, width]."""
    words = -(-width // 4)
    number = torch.arange(first * words, (first + num_rows) * words, dtype=torch.int64, device=device)
    _mix_(number, *_keys(seed, sequence))
    levels = number.view(torch.int16).view(num_rows, words * 4)[:, :width].int().bitwise_and_(_LEVELS - 1)
    return _table(kind, device).index_select(0, levels.flatten()).view(num_rows, width)


def _mix_(number: Tensor, first_key: int, second_key: int) -> None:
    """SplitMix64's finalizer of counter * golden + first_key, in place; products wrap at 64 bits."""
    number.mul_(_GOLDEN).add_(first_key)
    number.bitwise_xor_(_shifted(number, 30)).mul_(_FIRST).bitwise_xor_(second_key)
    number.bitwise_xor_(_shifted(number, 27)).mul_(_SECOND)
    number.bitwise_xor_(_shifted(number, 31))


def _shifted(number: Tensor, bits: int) -> Tensor:
    """Right, with zeros coming in from the left."""
    return (number >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _keys(seed: int, sequence: int) -> tuple[int, int]:
    digest = hashlib.sha256(f"context noise {seed} {sequence}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True), int.from_bytes(digest[8:16], "big", signed=True)


@lru_cache(maxsize=8)
def _table(kind: NoiseName, device: torch.device) -> Tensor:
    """The value of each level, made in fp64 on the CPU: the quantiles of the levels' middles, scaled to variance 1."""
    middles = (torch.arange(_LEVELS, dtype=torch.float64) + 0.5) / _LEVELS
    values = torch.special.ndtri(middles) if kind == "gaussian" else middles - 0.5
    return (values / values.square().mean().sqrt()).float().to(device)
