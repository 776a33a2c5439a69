"""Cross-entropy through a frozen head, in chunks of rows: the logits of all rows never exist together.

Axes: R rows, D width, V vocabulary. The gradient of the rows is made in the forward pass (the head is
frozen, so nothing else needs the logits), which costs one more [R, D] tensor and no recomputation.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class LinearCE:
    """Result of `linear_cross_entropy`."""

    loss_sum: Tensor
    """Scalar: sum over rows of weight * cross-entropy, in nats; the only part with a gradient."""
    cross_entropy_R: Tensor
    top1_R: Tensor
    """Arg-max of each row's fp32 logits."""


def linear_cross_entropy(
    states_RD: Tensor, head_VD: Tensor, labels_R: Tensor, weights_R: Tensor, *, chunk_rows: int = 2048
) -> LinearCE:
    """Weighted sum of cross-entropies of softmax(states @ head.T) against hard labels.

    No gradient reaches `head_VD`, `labels_R` or `weights_R`. Logits are fp32 whatever the states' dtype.
    """
    loss_sum, cross_entropy_R, top1_R = _LinearCE.apply(states_RD, head_VD.detach(), labels_R, weights_R, chunk_rows)
    return LinearCE(loss_sum, cross_entropy_R, top1_R)


@torch.no_grad()
def linear_argmax(states_RD: Tensor, head_VD: Tensor, *, chunk_rows: int = 2048) -> Tensor:
    """Arg-max over the vocabulary of states @ head.T, fp32, lowest id on ties: int64 [R]."""
    chunks = [linear_logits(chunk, head_VD).argmax(dim=-1) for chunk in states_RD.split(chunk_rows)]
    return torch.cat(chunks) if chunks else torch.empty(0, dtype=torch.int64, device=states_RD.device)


class _LinearCE(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states_RD: Tensor, head_VD: Tensor, labels_R: Tensor, weights_R: Tensor, chunk_rows: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        num_rows = states_RD.shape[0]
        grad_RD = torch.empty_like(states_RD)
        cross_entropy_R = torch.empty(num_rows, dtype=torch.float32, device=states_RD.device)
        top1_R = torch.empty(num_rows, dtype=torch.int64, device=states_RD.device)
        for start in range(0, num_rows, chunk_rows):
            rows = slice(start, min(start + chunk_rows, num_rows))
            logits = linear_logits(states_RD[rows], head_VD)
            labels = labels_R[rows, None]
            top1_R[rows] = logits.argmax(dim=-1)
            log_total = logits.logsumexp(dim=-1, keepdim=True)
            cross_entropy_R[rows] = (log_total - logits.gather(-1, labels))[:, 0]
            error = logits.sub_(log_total).exp_()
            error.scatter_add_(-1, labels, torch.full_like(labels, -1, dtype=error.dtype))
            error.mul_(weights_R[rows, None])
            grad_RD[rows] = (error.to(head_VD.dtype) @ head_VD).to(grad_RD.dtype)
        ctx.save_for_backward(grad_RD)
        ctx.mark_non_differentiable(cross_entropy_R, top1_R)
        return (cross_entropy_R * weights_R).sum(), cross_entropy_R, top1_R

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, *_: Any) -> tuple[Tensor, None, None, None, None]:
        (grad_RD,) = ctx.saved_tensors
        return grad_RD * grad_loss.to(grad_RD.dtype), None, None, None, None


def linear_logits(states_RD: Tensor, head_VD: Tensor) -> Tensor:
    """fp32 logits of all rows at once: [R, V].

    On a GPU straight from the accumulators, since bf16 logits near 20 tie in steps of 0.125.
    """
    states_RD = states_RD.to(head_VD.dtype)
    if states_RD.is_cuda and head_VD.dtype != torch.float32:
        return torch.mm(states_RD, head_VD.T, out_dtype=torch.float32)
    return (states_RD @ head_VD.T).float()
