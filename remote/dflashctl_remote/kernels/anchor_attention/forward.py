"""Triton, forward: a program has a tile of whole blocks, with all query heads of one key-value head.

The rows of a tile are [block, head, slot]. Blocks beside each other have anchors beside each other, so that nearly all
tiles of keys are visible throughout; heads of a group share their keys. README.md has the mathematics.
"""

import triton
import triton.language as tl

FAR = tl.constexpr(0x7FFFFFFF)


@triton.jit
def forward_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    own_key_ptr,
    own_value_ptr,
    mixed_ptr,
    lse_ptr,
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
    num_blocks,
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
    query = tl.load(
        query_ptr + (at * query_row + head * query_head)[:, None] + columns[None, :], mask=is_there[:, None], other=0.0
    )

    own = tl.arange(0, BLOCKS * SLOTS_P)
    own_at, own_there, sees = own_of_tile(own, tile, block, slot, num_blocks, SLOTS, SLOTS_P, BLOCKS, IS_CAUSAL)
    own_key_at = own_key_ptr + group * own_key_head + (own_at * own_key_row)[:, None] + columns[None, :]
    own_value_at = own_value_ptr + group * own_value_head + (own_at * own_value_row)[:, None] + columns[None, :]
    own_key = tl.load(own_key_at, mask=own_there[:, None], other=0.0)
    own_value = tl.load(own_value_at, mask=own_there[:, None], other=0.0)
    scores = tl.dot(query, tl.trans(own_key), input_precision=PRECISION) * scale_log2
    scores = tl.where(sees, scores, float("-inf"))
    best = tl.max(scores, 1)
    # Rows of blocks that are not there see nothing at all.
    best = tl.where(best == float("-inf"), 0.0, best)
    shares = tl.exp2(scores - best[:, None])
    total = tl.sum(shares, 1)
    mixed = tl.dot(shares.to(own_value.dtype), own_value, input_precision=PRECISION)

    keys = key_ptr + group * key_head
    values = value_ptr + group * value_head
    best, total, mixed = _over_context(
        query, keys, key_row, values, value_row, best, total, mixed,
        start, anchor, low, full_end, high, scale_log2, KEYS, SIZE, False, PRECISION,
    )  # fmt: skip
    best, total, mixed = _over_context(
        query, keys, key_row, values, value_row, best, total, mixed,
        start, anchor, full_end, high, high, scale_log2, KEYS, SIZE, True, PRECISION,
    )  # fmt: skip

    total = tl.where(total > 0, total, 1.0)
    mixed = mixed / total[:, None]
    mixed_at = mixed_ptr + (at * mixed_row + head * mixed_head)[:, None] + columns[None, :]
    tl.store(mixed_at, mixed.to(mixed_ptr.dtype.element_ty), mask=is_there[:, None])
    lse_at = lse_ptr + (group * num_blocks + block) * (HEADS_P * SLOTS_P) + rows % (HEADS_P * SLOTS_P)
    # Padded rows too: the backward pass reads them.
    tl.store(lse_at, best + tl.log2(total), mask=block < num_blocks)


@triton.jit
def _over_context(
    query,
    keys,
    key_row,
    values,
    value_row,
    best,
    total,
    mixed,
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
        if IS_MASKED:
            key = tl.load(keys + (at * key_row)[:, None] + columns[None, :], mask=(at < high)[:, None], other=0.0)
        else:
            key = tl.load(keys + (at * key_row)[:, None] + columns[None, :])
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION)
        if IS_MASKED:
            sees = (at[None, :] >= start[:, None]) & (at[None, :] < anchor[:, None])
            scores = tl.where(sees, scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, 1) * scale_log2)
        shares = tl.exp2(scores * scale_log2 - new_best[:, None])
        shrunk = tl.exp2(best - new_best)
        total = total * shrunk + tl.sum(shares, 1)
        mixed = mixed * shrunk[:, None]
        if IS_MASKED:
            value = tl.load(values + (at * value_row)[:, None] + columns[None, :], mask=(at < high)[:, None], other=0.0)
        else:
            value = tl.load(values + (at * value_row)[:, None] + columns[None, :])
        mixed = tl.dot(shares.to(value.dtype), value, mixed, input_precision=PRECISION)
        best = new_best
    return best, total, mixed


@triton.jit
def rows_of_tile(
    rows,
    tile,
    group,
    num_blocks,
    HEADS: tl.constexpr,
    HEADS_P: tl.constexpr,
    SLOTS: tl.constexpr,
    SLOTS_P: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Block, query head and slot of each row, and whether there is such a one."""
    block = tile * BLOCKS + rows // (HEADS_P * SLOTS_P)
    head = (rows // SLOTS_P) % HEADS_P
    slot = rows % SLOTS_P
    return block, group * HEADS + head, slot, (block < num_blocks) & (head < HEADS) & (slot < SLOTS)


@triton.jit
def range_of_tile(block, starts_ptr, anchors_ptr, num_blocks, KEYS: tl.constexpr):
    """Each row's range; then [low, high) of all rows together, which all see whole up to full_end."""
    start = tl.load(starts_ptr + block, mask=block < num_blocks, other=0)
    anchor = tl.load(anchors_ptr + block, mask=block < num_blocks, other=0)
    has_context = start < anchor
    low = tl.min(tl.where(has_context, start, FAR), 0)
    high = tl.max(tl.where(has_context, anchor, 0), 0)
    is_one_document = (tl.max(tl.where(has_context, start, 0), 0) == low) & (tl.min(has_context.to(tl.int32), 0) == 1)
    num_full = tl.where(is_one_document, (tl.min(anchor, 0) - low) // KEYS, 0)
    return start, anchor, low, low + num_full * KEYS, high


@triton.jit
def own_of_tile(
    own,
    tile,
    block,
    slot,
    num_blocks,
    SLOTS: tl.constexpr,
    SLOTS_P: tl.constexpr,
    BLOCKS: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
):
    """Index among all block tokens of each of the tile's own keys, whether it is there, and which row sees it."""
    own_block = tile * BLOCKS + own // SLOTS_P
    own_slot = own % SLOTS_P
    own_there = (own_block < num_blocks) & (own_slot < SLOTS)
    sees = (own_block[None, :] == block[:, None]) & own_there[None, :]
    if IS_CAUSAL:
        sees = sees & (own_slot[None, :] <= slot[:, None])
    return (own_block * SLOTS + own_slot).to(tl.int64), own_there, sees
