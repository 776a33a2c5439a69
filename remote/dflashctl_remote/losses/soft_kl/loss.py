"""Kullback-Leibler divergence from the target's distribution to the drafter's: see README.md.

Both logits exist for a chunk of rows only; the gradient of the states is made in the forward pass.
"""

from typing import Any

import torch
from torch import Tensor

from dflashctl_remote.losses.base import RowLosses, Rows
from dflashctl_remote.losses.linear_ce import linear_logits
from dflashctl_remote.spec.objective import ObjectiveSpec


def row_loss(rows: Rows, head_VE: Tensor, objective: ObjectiveSpec) -> RowLosses:
    """T^2 * KL(softmax(final @ head.T / T) || softmax(states @ head.T / T)) of each row, nats.

    `rows.final_RE` must be given. A quarter of `loss_chunk_rows` rows at a time, since two sets of logits and their
    difference exist in fp32.
    """
    assert rows.final_RE is not None, "soft_kl needs the target's final states"
    loss_R, cross_entropy_R, top1_R = _LinearKL.apply(
        rows.states_RD,
        rows.final_RE.detach(),
        head_VE.detach(),
        rows.labels_R,
        objective.temperature or 1.0,
        max(1, objective.loss_chunk_rows // 4),
    )
    return RowLosses(loss_R, cross_entropy_R, top1_R)


class _LinearKL(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states_RD: Tensor,
        final_RE: Tensor,
        head_VE: Tensor,
        labels_R: Tensor,
        temperature: float,
        chunk_rows: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        num_rows = states_RD.shape[0]
        grad_RD = torch.empty_like(states_RD)
        loss_R = torch.empty(num_rows, dtype=torch.float32, device=states_RD.device)
        cross_entropy_R = torch.empty_like(loss_R)
        top1_R = torch.empty(num_rows, dtype=torch.int64, device=states_RD.device)
        for start in range(0, num_rows, chunk_rows):
            rows = slice(start, min(start + chunk_rows, num_rows))
            logits = linear_logits(states_RD[rows], head_VE)
            top1_R[rows] = logits.argmax(dim=-1)
            cross_entropy_R[rows] = logits.logsumexp(dim=-1) - logits.gather(-1, labels_R[rows, None])[:, 0]
            log_drafter = _log_softmax_(logits, temperature)
            log_ratio = _log_softmax_(linear_logits(final_RE[rows], head_VE), temperature)
            target = log_ratio.exp()
            log_ratio.sub_(log_drafter)
            loss_R[rows] = log_ratio.mul_(target).sum(dim=-1) * temperature**2
            error = log_drafter.exp_().sub_(target).mul_(temperature)
            grad_RD[rows] = (error.to(head_VE.dtype) @ head_VE).to(grad_RD.dtype)
        ctx.save_for_backward(grad_RD)
        ctx.mark_non_differentiable(cross_entropy_R, top1_R)
        return loss_R, cross_entropy_R, top1_R

    @staticmethod
    def backward(ctx: Any, grad_R: Tensor, *_: Any) -> tuple[Tensor, None, None, None, None, None]:
        (grad_RD,) = ctx.saved_tensors
        return grad_RD * grad_R[:, None].to(grad_RD.dtype), None, None, None, None, None


def _log_softmax_(logits: Tensor, temperature: float) -> Tensor:
    """log softmax(logits / temperature), in place."""
    logits.div_(temperature)
    return logits.sub_(logits.logsumexp(dim=-1, keepdim=True))
