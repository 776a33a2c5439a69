"""Cross-entropy through a frozen head, in chunks of rows: the logits of all rows never exist together.

Axes: R rows, D = E width, V vocabulary. The gradient by the states is made in the forward pass (the head is frozen, so
nothing else needs the logits); the backward pass multiplies it by what comes in.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dflashctl_remote.kernels.common.rows import Backend, RowTuning, on_device_of, uses_triton
from dflashctl_remote.kernels.linear_ce.chunk import Chunk, torch_chunk, triton_chunk

CHUNK_ROWS = 2048
"""Of 248,320 bf16 logits: 0.95 GiB."""
NUM_SPLITS = 1
"""Parts of the vocabulary in the second product: chunk.py."""


@dataclass(frozen=True)
class LinearCE:
    """Result of `linear_cross_entropy`."""

    loss_sum: Tensor
    """Scalar: sum over rows of weight * cross-entropy, in nats; without weights the plain sum. Differentiable."""
    cross_entropy_R: Tensor
    """fp32 [R], nats. Differentiable row by row if no weights were given, else detached."""
    top1_R: Tensor
    """Arg-max of each row's logits: int64 [R]. Logits that bf16 cannot tell apart are compared in fp32."""


def linear_cross_entropy(
    states_RD: Tensor,
    head_VE: Tensor,
    labels_R: Tensor,
    weights_R: Tensor | None = None,
    *,
    chunk_rows: int = CHUNK_ROWS,
    backend: Backend = "auto",
    tuning: RowTuning = RowTuning(),
    num_splits: int = NUM_SPLITS,
) -> LinearCE:
    """Cross-entropies of softmax(states @ head.T) against hard labels, summed with weights or left to the caller.

    No gradient reaches `head_VE`, `labels_R` or `weights_R`. At most `chunk_rows` rows of logits exist at a time, in
    the head's dtype with Triton and in fp32 with torch. Nothing waits for the GPU.
    """
    pass_ = _Pass(head_VE.detach(), labels_R, weights_R, chunk_rows, uses_triton(backend, head_VE), tuning, num_splits)
    if weights_R is None:
        cross_entropy_R, top1_R = _RowwiseCE.apply(states_RD, pass_)
        return LinearCE(cross_entropy_R.sum(), cross_entropy_R, top1_R)
    loss_sum, cross_entropy_R, top1_R = _WeightedCE.apply(states_RD, pass_)
    return LinearCE(loss_sum, cross_entropy_R, top1_R)


@dataclass(frozen=True)
class _Pass:
    """All but the states."""

    head_VE: Tensor
    labels_R: Tensor
    weights_R: Tensor | None
    chunk_rows: int
    uses_triton: bool
    tuning: RowTuning
    num_splits: int

    def __call__(self, states_RD: Tensor, *, wants_grad: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """(cross_entropy_R, top1_R, the gradient by the states with the weights folded in)."""
        num_rows = len(states_RD)
        whole = Chunk(
            states_RD,
            self.labels_R,
            self.weights_R,
            cross_entropy_R=torch.empty(num_rows, dtype=torch.float32, device=states_RD.device),
            top1_R=torch.empty(num_rows, dtype=torch.int64, device=states_RD.device),
            grad_RD=torch.empty_like(states_RD) if wants_grad else None,
        )
        with on_device_of(states_RD):
            do = self._chunk_pass(min(num_rows, self.chunk_rows))
            for start in range(0, num_rows, self.chunk_rows):
                do(_part(whole, slice(start, start + self.chunk_rows)))
        return whole.cross_entropy_R, whole.top1_R, whole.grad_RD

    def _chunk_pass(self, num_rows: int) -> Callable[[Chunk], None]:
        if not self.uses_triton:
            return partial(torch_chunk, head_VE=self.head_VE)
        buffer_RV = self.head_VE.new_empty(num_rows, len(self.head_VE))
        return partial(
            triton_chunk, head_VE=self.head_VE, buffer_RV=buffer_RV, tuning=self.tuning, num_splits=self.num_splits
        )


def _part(whole: Chunk, rows: slice) -> Chunk:
    return Chunk(
        whole.states_RD[rows],
        whole.labels_R[rows],
        None if whole.weights_R is None else whole.weights_R[rows],
        whole.cross_entropy_R[rows],
        whole.top1_R[rows],
        None if whole.grad_RD is None else whole.grad_RD[rows],
    )


class _WeightedCE(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states_RD: Tensor, pass_: _Pass) -> tuple[Tensor, Tensor, Tensor]:
        assert pass_.weights_R is not None
        cross_entropy_R, top1_R, grad_RD = pass_(states_RD, wants_grad=ctx.needs_input_grad[0])
        ctx.save_for_backward(grad_RD)
        ctx.mark_non_differentiable(cross_entropy_R, top1_R)
        return (cross_entropy_R * pass_.weights_R).sum(), cross_entropy_R, top1_R

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, *_: Any) -> tuple[Tensor, None]:
        (grad_RD,) = ctx.saved_tensors
        return _scaled(grad_RD, grad_loss.reshape(1, 1)), None


class _RowwiseCE(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states_RD: Tensor, pass_: _Pass) -> tuple[Tensor, Tensor]:
        cross_entropy_R, top1_R, grad_RD = pass_(states_RD, wants_grad=ctx.needs_input_grad[0])
        ctx.save_for_backward(grad_RD)
        ctx.mark_non_differentiable(top1_R)
        return cross_entropy_R, top1_R

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_R: Tensor, *_: Any) -> tuple[Tensor, None]:
        (grad_RD,) = ctx.saved_tensors
        return _scaled(grad_RD, grad_R[:, None]), None


def _scaled(grad_RD: Tensor, factor: Tensor) -> Tensor:
    """In fp32 and rounded once, without an fp32 copy of the gradient: `factor` is [R, 1] or [1, 1]."""
    return torch.mul(grad_RD, factor, out=torch.empty_like(grad_RD))
