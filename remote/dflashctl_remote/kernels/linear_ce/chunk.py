"""One chunk of rows of the linear cross-entropy, by Triton or by torch alone. Both fill views that they are given."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dflashctl_remote.kernels.common.rows import RowTuning, linear_logits


@dataclass(frozen=True)
class Chunk:
    """Views of the rows of a chunk; the last three are written."""

    states_RD: Tensor
    labels_R: Tensor
    weights_R: Tensor | None
    cross_entropy_R: Tensor
    top1_R: Tensor
    grad_RD: Tensor | None
    """None: no gradient is wanted."""


def triton_chunk(chunk: Chunk, head_VE: Tensor, buffer_RV: Tensor, tuning: RowTuning, num_splits: int) -> None:
    """Two matrix products around one pass over the logits, which lie in `buffer_RV` (of the head's dtype)."""
    from dflashctl_remote.kernels.linear_ce.kernel import row_pass

    states_RD = chunk.states_RD.to(head_VE.dtype)
    logits_RV = buffer_RV[: len(states_RD)]
    torch.mm(states_RD, head_VE.T, out=logits_RV)
    row_pass(
        logits_RV,
        states_RD,
        head_VE,
        chunk.labels_R,
        chunk.weights_R,
        chunk.cross_entropy_R,
        chunk.top1_R,
        wants_grad=chunk.grad_RD is not None,
        tuning=tuning,
    )
    if chunk.grad_RD is not None:
        times_head(logits_RV, head_VE, chunk.grad_RD, num_splits)


def times_head(errors_RV: Tensor, head_VE: Tensor, out_RD: Tensor, num_splits: int) -> None:
    """out = errors @ head, in `num_splits` products over a part of the vocabulary each where that divides it.

    A product of few rows has few tiles, which fill a GPU's multiprocessors badly; its long inner axis can be cut.
    """
    if num_splits > 1 and len(head_VE) % num_splits == 0:
        errors = errors_RV.unflatten(1, (num_splits, -1)).transpose(0, 1)
        head = head_VE.unflatten(0, (num_splits, -1))
        is_rounded = errors_RV.is_cuda and head_VE.dtype != torch.float32
        # The parts stay in fp32 until they are added.
        parts = torch.bmm(errors, head, out_dtype=torch.float32) if is_rounded else torch.bmm(errors, head)
        for part in parts[2:]:
            parts[0].add_(part)
        torch.add(parts[0], parts[1], out=out_RD)
    elif out_RD.dtype == head_VE.dtype:
        torch.mm(errors_RV, head_VE, out=out_RD)
    else:
        out_RD.copy_(errors_RV @ head_VE)


def torch_chunk(chunk: Chunk, head_VE: Tensor) -> None:
    """The same in fp32 with torch alone."""
    logits_RV = linear_logits(chunk.states_RD, head_VE)
    labels = chunk.labels_R[:, None]
    chunk.top1_R.copy_(logits_RV.argmax(dim=-1))
    log_total = logits_RV.logsumexp(dim=-1, keepdim=True)
    chunk.cross_entropy_R.copy_((log_total - logits_RV.gather(-1, labels))[:, 0])
    if chunk.grad_RD is None:
        return
    error = logits_RV.sub_(log_total).exp_()
    error.scatter_add_(-1, labels, torch.full_like(labels, -1, dtype=error.dtype))
    if chunk.weights_R is not None:
        error.mul_(chunk.weights_R[:, None])
    chunk.grad_RD.copy_(error.to(head_VE.dtype) @ head_VE)
