"""Time and memory of the labels of a packed row at the target's real shape, all arms in turns."""

import torch

from dflashctl_remote.kernels.common.rows import linear_logits
from dflashctl_remote.kernels.common.timing import Way, time_ways
from dflashctl_remote.kernels.label_argmax.op import label_argmax
from dflashctl_remote.spec.kernels import Bench

ROWS, WIDTH, VOCAB = 5000, 5120, 248_320
"""Distinct positions that 512 anchors need of 8192: 61 %."""


def bench(device: torch.device) -> tuple[Bench, ...]:
    generator = torch.Generator(device).manual_seed(0)
    head = (torch.randn(VOCAB, WIDTH, generator=generator, device=device) * 0.02).to(torch.bfloat16)
    states = torch.randn(ROWS, WIDTH, generator=generator, device=device).to(torch.bfloat16)
    ways = (
        Way("ours", "ours", lambda: label_argmax(states, head)),
        Way("one matrix product", "floor", lambda: states @ head.T),
        Way("torch, in chunks", "other", lambda: label_argmax(states, head, backend="torch")),
        Way("torch, all logits", "other", lambda: linear_logits(states, head).argmax(-1)),
    )
    shape = f"{ROWS} rows x {WIDTH} x {VOCAB:,}, bf16"
    return (Bench(kernel="label_argmax", shape=shape, arms=time_ways(ways, device)),)
