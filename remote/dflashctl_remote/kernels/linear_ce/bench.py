"""Time and memory of the linear cross-entropy at the drafter's real shape, forward and gradient, all arms in turns.

Axes: R rows, D = E width, V vocabulary.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn import functional as F

from dflashctl_remote.kernels.common.timing import Way, time_ways, unmeasured
from dflashctl_remote.kernels.linear_ce.op import linear_cross_entropy
from dflashctl_remote.spec.kernels import Arm, Bar, Bench

ROWS, WIDTH, VOCAB = 7680, 5120, 248_320
"""512 blocks of 15 scored slots."""
MAX_RATIO, MAX_EXTRA_GIB = 1.10, 1.2


def bench(device: torch.device) -> tuple[Bench, ...]:
    generator = torch.Generator(device).manual_seed(0)
    bf16 = torch.bfloat16
    head = (torch.randn(VOCAB, WIDTH, generator=generator, device=device) * 0.02).to(bf16)
    states = torch.randn(ROWS, WIDTH, generator=generator, device=device).to(bf16).requires_grad_()
    labels = torch.randint(0, VOCAB, (ROWS,), generator=generator, device=device)
    weights = torch.rand(ROWS, generator=generator, device=device)
    ways = [
        Way("ours, weights folded in", "ours", lambda: _ours(states, head, labels, weights)),
        Way("ours, row by row", "ours", lambda: _ours_rowwise(states, head, labels, weights)),
        Way("two matrix products", "floor", lambda: _two_products(states, head)),
        Way("torch, in chunks", "other", lambda: _ours(states, head, labels, weights, backend="torch")),
        Way("torch, all logits", "other", lambda: _naive(states, head, labels, weights)),
    ]
    liger = _liger(states, head, labels)
    if liger is not None:
        ways.append(Way("liger", "other", liger, detail="without row weights"))
    arms = time_ways(ways, device)
    if liger is None:
        arms = (*arms, unmeasured("liger", "liger-kernel is not installed"))
    return (
        Bench(
            kernel="linear_ce",
            shape=f"{ROWS} rows x {WIDTH} x {VOCAB:,}, bf16, value and gradient by the states",
            arms=arms,
            bars=_bars(arms),
        ),
    )


def _bars(arms: tuple[Arm, ...]) -> tuple[Bar, ...]:
    ours, floor = arms[0], arms[2]
    if ours.median_ms is None or floor.median_ms is None or ours.extra_bytes is None:
        return ()
    return (
        Bar(what="time over that of two matrix products", limit=MAX_RATIO, found=ours.median_ms / floor.median_ms),
        Bar(what="extra memory", limit=MAX_EXTRA_GIB, found=ours.extra_bytes / 2**30, unit="GiB"),
    )


def _ours(states: Tensor, head: Tensor, labels: Tensor, weights: Tensor, **how: object) -> Tensor:
    out = linear_cross_entropy(states, head, labels, weights, **how)  # type: ignore[arg-type]
    return torch.autograd.grad(out.loss_sum, states)[0]


def _ours_rowwise(states: Tensor, head: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    out = linear_cross_entropy(states, head, labels)
    return torch.autograd.grad((out.cross_entropy_R * weights).sum(), states)[0]


@torch.no_grad()
def _two_products(states: Tensor, head: Tensor) -> Tensor:
    return (states @ head.T) @ head


def _naive(states: Tensor, head: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    loss = (F.cross_entropy((states @ head.T).float(), labels, reduction="none") * weights).sum()
    return torch.autograd.grad(loss, states)[0]


def _liger(states: Tensor, head: Tensor, labels: Tensor) -> Callable[[], object] | None:
    if find_spec("liger_kernel") is None:
        return None
    loss = import_module("liger_kernel.transformers").LigerFusedLinearCrossEntropyLoss(reduction="sum")

    def run() -> object:
        out = loss(head, states, labels)
        return torch.autograd.grad(out[0] if isinstance(out, tuple) else out, states)[0]

    return run
