"""The target's label at each position: arg-max of states @ head.T, without keeping logits.

Axes: R rows, D = E width, V vocabulary, T positions of a row of tokens, U positions without repeats.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dflashctl_remote.kernels.common.rows import Backend, RowTuning, linear_logits, on_device_of, uses_triton

CHUNK_ROWS = 2048


@torch.no_grad()
def label_argmax(
    states_RD: Tensor,
    head_VE: Tensor,
    *,
    chunk_rows: int = CHUNK_ROWS,
    backend: Backend = "auto",
    tuning: RowTuning = RowTuning(),
) -> Tensor:
    """Arg-max over the vocabulary as exact as fp32 dot products are, the lowest id on ties: int64 [R].

    At most `chunk_rows` rows of logits exist at a time. Nothing waits for the GPU.
    """
    top1_R = torch.empty(len(states_RD), dtype=torch.int64, device=states_RD.device)
    buffer_RV = None
    if uses_triton(backend, head_VE):
        buffer_RV = head_VE.new_empty(min(len(states_RD), chunk_rows), len(head_VE))
    with on_device_of(states_RD):
        for states, top1 in zip(states_RD.split(chunk_rows), top1_R.split(chunk_rows), strict=True):
            if buffer_RV is None:
                top1.copy_(linear_logits(states, head_VE).argmax(dim=-1))
            elif len(states):
                _triton_chunk(states.to(head_VE.dtype), head_VE, buffer_RV[: len(states)], top1, tuning)
    return top1_R


@torch.no_grad()
def label_argmax_at(
    states_TE: Tensor, positions_R: npt.NDArray[np.integer], head_VE: Tensor, *, chunk_rows: int = CHUNK_ROWS
) -> Tensor:
    """Labels of the given positions, each distinct one computed once: int64 [R] on the states' device.

    Positions are on the CPU, where the loader made them, so that taking out repeats makes nothing wait for the GPU.
    """
    needed_U, inverse_R = np.unique(positions_R, return_inverse=True)
    indices_U = torch.from_numpy(needed_U).to(states_TE.device)
    # Gathered chunk by chunk: for all positions at once the copy would be as large as the states.
    chunks = [label_argmax(states_TE[part], head_VE, chunk_rows=chunk_rows) for part in indices_U.split(chunk_rows)]
    return torch.cat(chunks)[torch.from_numpy(inverse_R).to(states_TE.device)]


def _triton_chunk(states_RD: Tensor, head_VE: Tensor, logits_RV: Tensor, top1_R: Tensor, tuning: RowTuning) -> None:
    from dflashctl_remote.kernels.label_argmax.kernel import argmax_pass

    torch.mm(states_RD, head_VE.T, out=logits_RV)
    argmax_pass(logits_RV, states_RD, head_VE, top1_R, tuning=tuning)
