"""Triton: one pass over rows of bf16 or fp32 logits that are already there. README.md has the mathematics."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from dflashctl_remote.kernels.common.rows import RowTuning, next_power_of_2
from dflashctl_remote.kernels.common.top1 import scan_row, settle_top1


def row_pass(
    logits_RV: Tensor,
    states_RD: Tensor,
    head_VE: Tensor,
    labels_R: Tensor,
    weights_R: Tensor | None,
    cross_entropy_R: Tensor,
    top1_R: Tensor,
    *,
    wants_grad: bool,
    tuning: RowTuning,
) -> None:
    """Writes cross_entropy_R (fp32) and top1_R (int64); with `wants_grad` turns logits into weight * (p - 1[label]).

    logits_RV must be states_RD @ head_VE.T as rounded to its dtype; every tensor's last axis is contiguous. Labels must
    lie in the vocabulary, which is not checked. Nothing here waits for the GPU.
    """
    num_rows, num_vocab = logits_RV.shape
    width = states_RD.shape[1]
    assert logits_RV.stride(1) == states_RD.stride(1) == head_VE.stride(1) == 1, "rows must be contiguous"
    launch: Any = row_kernel[(num_rows,)]
    launch(
        logits_RV,
        logits_RV.stride(0),
        states_RD,
        states_RD.stride(0),
        head_VE,
        head_VE.stride(0),
        labels_R,
        weights_R,
        cross_entropy_R,
        top1_R,
        num_vocab,
        width,
        HAS_WEIGHTS=weights_R is not None,
        WANTS_GRAD=wants_grad,
        BLOCK=min(tuning.block, next_power_of_2(num_vocab)),
        BLOCK_D=min(8192, next_power_of_2(width)),
        STAGES=tuning.num_stages,
        num_warps=tuning.num_warps,
    )


@triton.jit
def row_kernel(
    logits_ptr,
    logits_stride,
    states_ptr,
    states_stride,
    head_ptr,
    head_stride,
    labels_ptr,
    weights_ptr,
    cross_entropy_ptr,
    top1_ptr,
    num_vocab,
    width,
    HAS_WEIGHTS: tl.constexpr,
    WANTS_GRAD: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * logits_stride
    state_ptr = states_ptr + row * states_stride
    label = tl.load(labels_ptr + row).to(tl.int32)
    label_logit = tl.load(row_ptr + label).to(tl.float32)

    best, best_id, num_near, total = scan_row(row_ptr, num_vocab, BLOCK, True, STAGES)
    if num_near > 1:
        best_id = settle_top1(
            row_ptr, state_ptr, head_ptr, head_stride, num_vocab, width, best, best_id, BLOCK, BLOCK_D
        )
    tl.store(top1_ptr + row, best_id.to(tl.int64))
    # Not log_total - label_logit: with a large maximum that would lose what matters to rounding.
    tl.store(cross_entropy_ptr + row, tl.log(total) - (label_logit - best))

    if WANTS_GRAD:
        weight = tl.full((), 1.0, tl.float32)
        if HAS_WEIGHTS:
            weight = tl.load(weights_ptr + row).to(tl.float32)
        scale = weight / total
        num_tiles = tl.cdiv(num_vocab, BLOCK)
        # Backwards: the end of the row is what the cache still holds.
        for tile in tl.range(0, num_tiles, num_stages=STAGES):
            offsets = (num_tiles - 1 - tile) * BLOCK + tl.arange(0, BLOCK)
            is_inside = offsets < num_vocab
            x = tl.load(row_ptr + offsets, mask=is_inside, other=float("-inf"), eviction_policy="evict_first")
            error = tl.exp(x.to(tl.float32) - best) * scale
            tl.store(row_ptr + offsets, error.to(logits_ptr.dtype.element_ty), mask=is_inside)
        # The label's own entry once more, after whichever thread wrote it: cheaper than asking at every entry.
        tl.debug_barrier()
        label_error = tl.exp(label_logit - best) * scale - weight
        tl.store(row_ptr + label, label_error.to(logits_ptr.dtype.element_ty))
