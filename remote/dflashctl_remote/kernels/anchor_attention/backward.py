"""Triton, backward: two kernels, neither with atomics, so that gradients are the same in every run.

`query_kernel` has the forward kernel's tiles: it gives the gradients of queries and of the blocks' own keys and values,
which nobody else sees. `context_kernel` has a tile of the context's keys and goes through the blocks behind it.
"""

import triton
import triton.language as tl

from dflashctl_remote.kernels.anchor_attention.forward import own_of_tile, range_of_tile, rows_of_tile


@triton.jit
def query_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    own_key_ptr,
    own_value_ptr,
    mixed_ptr,
    back_ptr,
    lse_ptr,
    delta_ptr,
    query_grad_ptr,
    own_key_grad_ptr,
    own_value_grad_ptr,
    starts_ptr,
    anchors_ptr,
    order_ptr,
    query_head,
    query_row,
    key_head,
    key_row,
    value_head,
    value_row,
    own_key_head,
    own_key_row,
    own_value_head,
    own_value_row,
    mixed_head,
    mixed_row,
    back_head,
    back_row,
    query_grad_head,
    query_grad_row,
    own_grad_head,
    own_grad_row,
    num_blocks,
    scale,
    scale_log2,
    HEADS: tl.constexpr,
    HEADS_P: tl.constexpr,
    SLOTS: tl.constexpr,
    SLOTS_P: tl.constexpr,
    BLOCKS: tl.constexpr,
    SIZE: tl.constexpr,
    KEYS: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
):
    group = tl.program_id(0)
    tile = tl.load(order_ptr + tl.program_id(1))
    rows = tl.arange(0, BLOCKS * HEADS_P * SLOTS_P)
    columns = tl.arange(0, SIZE)
    block, head, slot, is_there = rows_of_tile(rows, tile, group, num_blocks, HEADS, HEADS_P, SLOTS, SLOTS_P, BLOCKS)
    start, anchor, low, full_end, high = range_of_tile(block, starts_ptr, anchors_ptr, num_blocks, KEYS)
    at = (block * SLOTS + slot).to(tl.int64)
    row_there = is_there[:, None]
    query_at = query_ptr + (at * query_row + head * query_head)[:, None] + columns[None, :]
    back_at = back_ptr + (at * back_row + head * back_head)[:, None] + columns[None, :]
    mixed_at = mixed_ptr + (at * mixed_row + head * mixed_head)[:, None] + columns[None, :]
    query = tl.load(query_at, mask=row_there, other=0.0)
    back = tl.load(back_at, mask=row_there, other=0.0)
    mixed = tl.load(mixed_at, mask=row_there, other=0.0)
    delta = tl.sum(mixed.to(tl.float32) * back.to(tl.float32), 1)
    row_at = (group * num_blocks + block) * (HEADS_P * SLOTS_P) + rows % (HEADS_P * SLOTS_P)
    tl.store(delta_ptr + row_at, delta, mask=block < num_blocks)
    lse = tl.load(lse_ptr + row_at, mask=block < num_blocks, other=0.0)

    own = tl.arange(0, BLOCKS * SLOTS_P)
    own_at, own_there, sees = own_of_tile(own, tile, block, slot, num_blocks, SLOTS, SLOTS_P, BLOCKS, IS_CAUSAL)
    own_key_at = own_key_ptr + group * own_key_head + (own_at * own_key_row)[:, None] + columns[None, :]
    own_value_at = own_value_ptr + group * own_value_head + (own_at * own_value_row)[:, None] + columns[None, :]
    own_key = tl.load(own_key_at, mask=own_there[:, None], other=0.0)
    own_value = tl.load(own_value_at, mask=own_there[:, None], other=0.0)
    scores = tl.dot(query, tl.trans(own_key), input_precision=PRECISION)
    # Before exp2: what is not seen may be larger than anything that is.
    shares = tl.exp2(tl.where(sees, scores * scale_log2 - lse[:, None], float("-inf")))
    share_grad = tl.dot(back, tl.trans(own_value), input_precision=PRECISION)
    score_grad = (shares * (share_grad - delta[:, None])).to(query.dtype)
    query_grad = tl.dot(score_grad, own_key, input_precision=PRECISION)
    own_grad_at = group * own_grad_head + (own_at * own_grad_row)[:, None] + columns[None, :]
    own_value_grad = tl.dot(tl.trans(shares.to(back.dtype)), back, input_precision=PRECISION)
    out_dtype = own_value_grad_ptr.dtype.element_ty
    tl.store(own_value_grad_ptr + own_grad_at, own_value_grad.to(out_dtype), mask=own_there[:, None])
    own_key_grad = tl.dot(tl.trans(score_grad), query, input_precision=PRECISION) * scale
    tl.store(own_key_grad_ptr + own_grad_at, own_key_grad.to(out_dtype), mask=own_there[:, None])

    keys = key_ptr + group * key_head
    values = value_ptr + group * value_head
    query_grad = _query_grad(
        query_grad, query, back, lse, delta, keys, key_row, values, value_row,
        start, anchor, low, full_end, high, scale_log2, KEYS, SIZE, False, PRECISION,
    )  # fmt: skip
    query_grad = _query_grad(
        query_grad, query, back, lse, delta, keys, key_row, values, value_row,
        start, anchor, full_end, high, high, scale_log2, KEYS, SIZE, True, PRECISION,
    )  # fmt: skip
    query_grad_at = query_grad_ptr + (at * query_grad_row + head * query_grad_head)[:, None] + columns[None, :]
    tl.store(query_grad_at, (query_grad * scale).to(out_dtype), mask=row_there)


@triton.jit
def _query_grad(
    query_grad,
    query,
    back,
    lse,
    delta,
    keys,
    key_row,
    values,
    value_row,
    start,
    anchor,
    first,
    last,
    high,
    scale_log2,
    KEYS: tl.constexpr,
    SIZE: tl.constexpr,
    IS_MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    columns = tl.arange(0, SIZE)
    for begin in tl.range(first, last, KEYS):
        at = begin + tl.arange(0, KEYS)
        key_at = keys + (at * key_row)[:, None] + columns[None, :]
        value_at = values + (at * value_row)[:, None] + columns[None, :]
        if IS_MASKED:
            key = tl.load(key_at, mask=(at < high)[:, None], other=0.0)
            value = tl.load(value_at, mask=(at < high)[:, None], other=0.0)
        else:
            key = tl.load(key_at)
            value = tl.load(value_at)
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION)
        scores = scores * scale_log2 - lse[:, None]
        if IS_MASKED:
            sees = (at[None, :] >= start[:, None]) & (at[None, :] < anchor[:, None])
            scores = tl.where(sees, scores, float("-inf"))
        shares = tl.exp2(scores)
        share_grad = tl.dot(back, tl.trans(value), input_precision=PRECISION)
        score_grad = shares * (share_grad - delta[:, None])
        query_grad = tl.dot(score_grad.to(key.dtype), key, query_grad, input_precision=PRECISION)
    return query_grad


@triton.jit
def context_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    back_ptr,
    lse_ptr,
    delta_ptr,
    key_grad_ptr,
    value_grad_ptr,
    starts_ptr,
    anchors_ptr,
    first_ptr,
    full_ptr,
    last_ptr,
    order_ptr,
    query_head,
    query_row,
    key_head,
    key_row,
    value_head,
    value_row,
    back_head,
    back_row,
    grad_head,
    grad_row,
    num_context,
    num_blocks,
    scale,
    scale_log2,
    HEADS: tl.constexpr,
    HEADS_P: tl.constexpr,
    SLOTS: tl.constexpr,
    SLOTS_P: tl.constexpr,
    SIZE: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    group = tl.program_id(0)
    tile = tl.load(order_ptr + tl.program_id(1))
    at = tile * KEYS + tl.arange(0, KEYS)
    columns = tl.arange(0, SIZE)
    is_inside = (at < num_context)[:, None]
    long_at = at.to(tl.int64)[:, None]
    key = tl.load(key_ptr + group * key_head + long_at * key_row + columns[None, :], mask=is_inside, other=0.0)
    value = tl.load(value_ptr + group * value_head + long_at * value_row + columns[None, :], mask=is_inside, other=0.0)
    first, full, last = tl.load(first_ptr + tile), tl.load(full_ptr + tile), tl.load(last_ptr + tile)
    queries = query_ptr + group * HEADS * query_head
    backs = back_ptr + group * HEADS * back_head
    # The group's rows of [block, head, slot].
    lses = lse_ptr + group * num_blocks * (HEADS_P * SLOTS_P)
    deltas = delta_ptr + group * num_blocks * (HEADS_P * SLOTS_P)
    key_grad = tl.zeros((KEYS, SIZE), tl.float32)
    value_grad = tl.zeros((KEYS, SIZE), tl.float32)
    key_grad, value_grad = _context_grad(
        key_grad, value_grad, key, value, at, queries, query_head, query_row, backs, back_head, back_row,
        lses, deltas, starts_ptr, anchors_ptr, first, full, scale_log2,
        HEADS, HEADS_P, SLOTS, SLOTS_P, SIZE, True, PRECISION,
    )  # fmt: skip
    key_grad, value_grad = _context_grad(
        key_grad, value_grad, key, value, at, queries, query_head, query_row, backs, back_head, back_row,
        lses, deltas, starts_ptr, anchors_ptr, full, last, scale_log2,
        HEADS, HEADS_P, SLOTS, SLOTS_P, SIZE, False, PRECISION,
    )  # fmt: skip
    grad_at = group * grad_head + long_at * grad_row + columns[None, :]
    tl.store(key_grad_ptr + grad_at, (key_grad * scale).to(key_grad_ptr.dtype.element_ty), mask=is_inside)
    tl.store(value_grad_ptr + grad_at, value_grad.to(value_grad_ptr.dtype.element_ty), mask=is_inside)


@triton.jit
def _context_grad(
    key_grad,
    value_grad,
    key,
    value,
    at,
    queries,
    query_head,
    query_row,
    backs,
    back_head,
    back_row,
    lses,
    deltas,
    starts_ptr,
    anchors_ptr,
    first,
    last,
    scale_log2,
    HEADS: tl.constexpr,
    HEADS_P: tl.constexpr,
    SLOTS: tl.constexpr,
    SLOTS_P: tl.constexpr,
    SIZE: tl.constexpr,
    IS_MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Scores stand here with keys as rows."""
    rows = tl.arange(0, HEADS_P * SLOTS_P)
    head = rows // SLOTS_P
    slot = rows % SLOTS_P
    columns = tl.arange(0, SIZE)
    is_there = ((head < HEADS) & (slot < SLOTS))[:, None]
    for block in tl.range(first, last):
        row = block * SLOTS + slot
        query_at = queries + (row * query_row + head * query_head)[:, None] + columns[None, :]
        back_at = backs + (row * back_row + head * back_head)[:, None] + columns[None, :]
        if HEADS == HEADS_P and SLOTS == SLOTS_P:
            query = tl.load(query_at)
            back = tl.load(back_at)
        else:
            query = tl.load(query_at, mask=is_there, other=0.0)
            back = tl.load(back_at, mask=is_there, other=0.0)
        lse = tl.load(lses + block * (HEADS_P * SLOTS_P) + rows)
        delta = tl.load(deltas + block * (HEADS_P * SLOTS_P) + rows)
        scores = tl.dot(key, tl.trans(query), input_precision=PRECISION)
        scores = scores * scale_log2 - lse[None, :]
        if IS_MASKED:
            sees = (at >= tl.load(starts_ptr + block)) & (at < tl.load(anchors_ptr + block))
            scores = tl.where(sees[:, None], scores, float("-inf"))
        shares = tl.exp2(scores)
        value_grad = tl.dot(shares.to(back.dtype), back, value_grad, input_precision=PRECISION)
        share_grad = tl.dot(value, tl.trans(back), input_precision=PRECISION)
        score_grad = shares * (share_grad - delta[None, :])
        key_grad = tl.dot(score_grad.to(query.dtype), query, key_grad, input_precision=PRECISION)
    return key_grad, value_grad
