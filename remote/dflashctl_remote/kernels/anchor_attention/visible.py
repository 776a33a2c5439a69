"""Which keys a block sees, as index ranges: the rule in the form that kernels want, and its tiles.

The mathematics stands in README.md. Axes: N blocks, K slots, Q = N*K queries, T context tokens, S = T + Q keys,
I and J tiles of queries and of keys.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

TILE = 128
"""Queries and keys of a tile: eight blocks of sixteen."""

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Visible:
    """Slot k of block n sees the context [low(n, k), anchors[n]) and, of its own block, all or what a window leaves.

    low(n, k) = starts[n], on windowed layers max(starts[n], anchors[n] + k + 1 - window).
    """

    starts_N: Tensor
    """Index in the row of the first token of the block's document, int32."""
    anchors_N: Tensor
    """Index in the row of the anchor, int32; equal to starts_N where the block sees no context."""
    num_context: int
    block_size: int
    window: int | None = None
    is_causal: bool = False

    @property
    def num_queries(self) -> int:
        return self.anchors_N.shape[0] * self.block_size

    @property
    def num_keys(self) -> int:
        return self.num_context + self.num_queries


def mask_mod(visible: Visible) -> MaskMod:
    """The rule in flex_attention's form: (batch, head, query, key) indices -> bool."""
    num_context, block_size = visible.num_context, visible.block_size
    window, is_causal = visible.window, visible.is_causal
    starts_N, anchors_N = visible.starts_N, visible.anchors_N

    def is_visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        block, slot = query // block_size, query % block_size
        low, anchor = starts_N[block], anchors_N[block]
        if window is not None:
            low = torch.maximum(low, anchor + slot + 1 - window)
        sees_context = (key >= low) & (key < anchor)
        own = torch.where(key < num_context, 0, key - num_context)
        own_slot = own % block_size
        sees_block = (key >= num_context) & (own // block_size == block)
        if is_causal:
            sees_block = sees_block & (own_slot <= slot)
        if window is not None:
            sees_block = sees_block & (own_slot - slot < window) & (slot - own_slot < window)
        return sees_context | sees_block

    return is_visible


def visible_tiles(visible: Visible) -> tuple[Tensor, Tensor]:
    """(partial_IJ, full_IJ), both bool: tiles that need the rule inside, and tiles that are visible throughout.

    Built from the ranges, never from the [Q, S] grid. May call a tile partial that is full or, with windows, empty
    at a corner; never leaves out a visible pair.
    """
    size, num_blocks = visible.block_size, visible.anchors_N.shape[0]
    device = visible.anchors_N.device
    first_query_I = torch.arange(0, visible.num_queries, TILE, device=device)
    first_key_J = torch.arange(0, visible.num_keys, TILE, device=device)
    first_I = first_query_I // size
    last_I = ((first_query_I + TILE - 1) // size).clamp(max=num_blocks - 1)
    # Blocks that a tile touches; the last one is named again where there are fewer.
    blocks_IB = torch.minimum(first_I[:, None] + torch.arange((TILE - 2) // size + 2, device=device), last_I[:, None])

    low_N = high_low_N = visible.starts_N
    if visible.window is not None:
        low_N = torch.maximum(visible.starts_N, visible.anchors_N + 1 - visible.window)
        high_low_N = torch.maximum(visible.starts_N, visible.anchors_N + size - visible.window)
    low_IB1, high_low_IB1 = low_N[blocks_IB][..., None], high_low_N[blocks_IB][..., None]
    anchor_IB1 = visible.anchors_N[blocks_IB][..., None]
    end_key_J = first_key_J + TILE
    touches_IBJ = (low_IB1 < end_key_J) & (anchor_IB1 > first_key_J) & (low_IB1 < anchor_IB1)
    covers_IBJ = (high_low_IB1 <= first_key_J) & (anchor_IB1 >= end_key_J)

    is_whole_I1 = (first_query_I + TILE <= visible.num_queries)[:, None]
    full_IJ = covers_IBJ.all(dim=1) & is_whole_I1
    own_start_I1 = (visible.num_context + first_I * size)[:, None]
    own_end_I1 = (visible.num_context + (last_I + 1) * size)[:, None]
    own_IJ = (own_start_I1 < end_key_J) & (own_end_I1 > first_key_J)
    return (touches_IBJ.any(dim=1) | own_IJ) & ~full_IJ, full_IJ
