"""Triton: the arg-max of a row of logits that were rounded, as exact as fp32 dot products are.

Rounding to bf16 keeps order but not distance, so the winner is among the logits within one bf16 step of the largest.
`scan_row` finds the largest and counts those near it; if there are several, `settle_top1` scores each of them anew, in
fp32, from its row of the head, however many there are. The margin of 2**-7 of the largest is one to two bf16 steps.
"""

import triton
import triton.language as tl


@triton.jit
def near(best):
    """The smallest logit that may belong to the true arg-max."""
    return best - tl.abs(best) * 0.0078125


@triton.jit
def scan_row(row_ptr, num_vocab, BLOCK: tl.constexpr, WITH_TOTAL: tl.constexpr, STAGES: tl.constexpr):
    """The largest logit, its id if none is near it, at least how many are (itself too), sum(exp(logit - largest))."""
    best = tl.full((), float("-inf"), tl.float32)
    best_id = tl.full((), 0, tl.int32)
    num_near = tl.full((), 0, tl.int32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in tl.range(0, num_vocab, BLOCK, num_stages=STAGES):
        offsets = start + tl.arange(0, BLOCK)
        is_inside = offsets < num_vocab
        x = tl.load(row_ptr + offsets, mask=is_inside, other=float("-inf"), eviction_policy="evict_last").to(tl.float32)
        tile_best = tl.max(x, 0)
        new_best = tl.maximum(best, tile_best)
        if WITH_TOTAL:
            # Kept apart for each column of the tile and summed once, at the end.
            total = total * tl.exp(best - new_best) + tl.exp(x - new_best)
        threshold = near(new_best)
        # A handful of tiles a row: those that hold a new maximum, or something next to it.
        if tile_best >= threshold:
            first = tl.min(tl.where(is_inside & (x == tile_best), offsets, num_vocab), 0)
            num_here = tl.sum((is_inside & (x >= threshold)).to(tl.int32), 0)
            # Not the largest's if an earlier tile has that: then there are two near it, and the id is settled anew.
            best_id = first
            num_near = tl.where(best < threshold, 0, num_near) + num_here
        best = new_best
    return best, best_id, num_near, tl.sum(total, 0)


@triton.jit
def score(state_ptr, head_row_ptr, width, BLOCK_D: tl.constexpr):
    """fp32 dot product of a state and a row of the head."""
    total = tl.zeros((BLOCK_D,), tl.float32)
    for start in range(0, width, BLOCK_D):
        columns = start + tl.arange(0, BLOCK_D)
        is_inside = columns < width
        state = tl.load(state_ptr + columns, mask=is_inside, other=0.0).to(tl.float32)
        weight = tl.load(head_row_ptr + columns, mask=is_inside, other=0.0).to(tl.float32)
        total += state * weight
    return tl.sum(total, 0)


@triton.jit
def settle_top1(
    row_ptr,
    state_ptr,
    head_ptr,
    head_stride,
    num_vocab,
    width,
    best,
    best_id,
    BLOCK: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """The id whose fp32 score is the largest among the logits near `best`; the lowest id if scores are equal."""
    threshold = near(best)
    best_score = tl.full((), float("-inf"), tl.float32)
    for start in range(0, num_vocab, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        is_inside = offsets < num_vocab
        x = tl.load(row_ptr + offsets, mask=is_inside, other=float("-inf")).to(tl.float32)
        is_near = is_inside & (x >= threshold)
        num_left = tl.sum(is_near.to(tl.int32), 0)
        last = start - 1
        while num_left > 0:
            candidate = tl.min(tl.where(is_near & (offsets > last), offsets, num_vocab), 0)
            found = score(state_ptr, head_ptr + candidate.to(tl.int64) * head_stride, width, BLOCK_D)
            best_id = tl.where(found > best_score, candidate, best_id)
            best_score = tl.maximum(found, best_score)
            last = candidate
            num_left -= 1
    return best_id
