"""Triton: the exact arg-max of rows of rounded logits that are already there, in one sweep."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from dflashctl_remote.kernels.common.rows import RowTuning, next_power_of_2
from dflashctl_remote.kernels.common.top1 import scan_row, settle_top1


def argmax_pass(logits_RV: Tensor, states_RD: Tensor, head_VE: Tensor, top1_R: Tensor, *, tuning: RowTuning) -> None:
    """Writes top1_R (int64). logits_RV must be states_RD @ head_VE.T as rounded to its dtype."""
    num_rows, num_vocab = logits_RV.shape
    width = states_RD.shape[1]
    assert logits_RV.stride(1) == states_RD.stride(1) == head_VE.stride(1) == 1, "rows must be contiguous"
    launch: Any = argmax_kernel[(num_rows,)]
    launch(
        logits_RV,
        logits_RV.stride(0),
        states_RD,
        states_RD.stride(0),
        head_VE,
        head_VE.stride(0),
        top1_R,
        num_vocab,
        width,
        BLOCK=min(tuning.block, next_power_of_2(num_vocab)),
        BLOCK_D=min(8192, next_power_of_2(width)),
        STAGES=tuning.num_stages,
        num_warps=tuning.num_warps,
    )


@triton.jit
def argmax_kernel(
    logits_ptr,
    logits_stride,
    states_ptr,
    states_stride,
    head_ptr,
    head_stride,
    top1_ptr,
    num_vocab,
    width,
    BLOCK: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * logits_stride
    state_ptr = states_ptr + row * states_stride
    best, best_id, num_near, _ = scan_row(row_ptr, num_vocab, BLOCK, False, STAGES)
    if num_near > 1:
        best_id = settle_top1(
            row_ptr, state_ptr, head_ptr, head_stride, num_vocab, width, best, best_id, BLOCK, BLOCK_D
        )
    tl.store(top1_ptr + row, best_id.to(tl.int64))
