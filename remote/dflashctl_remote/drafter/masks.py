"""Who sees whom, defined once. The eager path evaluates it on a grid; kernels get the same as index ranges.

Axes: T context tokens, N blocks, K slots of a block, Q = N*K block tokens; the key axis is [T context ; Q blocks].
A slot sees, of its own document, the context strictly before its anchor, and the slots of its own block;
on sliding layers only what lies less than a window away; on causal layers only the slots up to itself.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dflashctl_remote.kernels.anchor_attention.visible import MaskMod, Visible

NO_DOCUMENT = -2
"""Document of a padding anchor: it matches no token, padding (-1) included, so such a block sees only itself."""


@dataclass(frozen=True)
class Layout:
    """Where context tokens and blocks stand in one packed row. All tensors are int64 on one device."""

    context_positions_T: Tensor
    context_documents_T: Tensor
    """-1 at padding."""
    anchor_indices_N: Tensor
    """Index of the anchor in the row; anchors are sorted."""
    anchor_positions_N: Tensor
    """Position of the anchor in its document."""
    anchor_documents_N: Tensor
    """NO_DOCUMENT for a padding anchor."""
    block_size: int

    @property
    def num_context(self) -> int:
        return self.context_positions_T.shape[0]

    @property
    def num_queries(self) -> int:
        return self.anchor_indices_N.shape[0] * self.block_size

    def blocks(self, first: int, last: int) -> "Layout":
        """The same row with anchors first..last-1 alone."""
        return replace(
            self,
            anchor_indices_N=self.anchor_indices_N[first:last],
            anchor_positions_N=self.anchor_positions_N[first:last],
            anchor_documents_N=self.anchor_documents_N[first:last],
        )

    def block_positions_Q(self) -> Tensor:
        """Position of slot k of a block whose anchor stands at p: p + k."""
        slots_K = torch.arange(self.block_size, device=self.anchor_positions_N.device)
        return (self.anchor_positions_N[:, None] + slots_K).flatten()


def mask_mod(layout: Layout, *, window: int | None, is_causal: bool) -> MaskMod:
    """The visibility rule: (batch, head, query, key) indices -> bool."""
    num_context, block_size = layout.num_context, layout.block_size
    context_positions, context_documents = layout.context_positions_T, layout.context_documents_T
    anchor_indices, anchor_positions = layout.anchor_indices_N, layout.anchor_positions_N
    anchor_documents = layout.anchor_documents_N

    def is_visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        block, slot = query // block_size, query % block_size
        is_context = key < num_context
        at = torch.where(is_context, key, 0)
        sees_context = is_context & (context_documents[at] == anchor_documents[block]) & (at < anchor_indices[block])
        own = torch.where(is_context, 0, key - num_context)
        own_slot = own % block_size
        sees_block = ~is_context & (own // block_size == block)
        if is_causal:
            sees_block = sees_block & (own_slot <= slot)
        if window is not None:
            distance = anchor_positions[block] + slot - context_positions[at]
            sees_context = sees_context & (distance < window)
            sees_block = sees_block & ((slot - own_slot).abs() < window)
        return sees_context | sees_block

    return is_visible


def dense_mask(layout: Layout, *, window: int | None, is_causal: bool) -> Tensor:
    """The same rule on the whole grid: bool [Q, T + Q]."""
    device = layout.context_positions_T.device
    query = torch.arange(layout.num_queries, device=device)[:, None]
    key = torch.arange(layout.num_context + layout.num_queries, device=device)[None, :]
    none = torch.zeros((), dtype=torch.int64, device=device)
    return mask_mod(layout, window=window, is_causal=is_causal)(none, none, query, key)


def visible(layout: Layout, *, window: int | None, is_causal: bool) -> Visible:
    """The same rule as ranges of indices; documents are contiguous and count their positions from 0.

    A token's document begins `position` before it, and within a document distances are distances of indices.
    """
    is_padding_N = layout.anchor_documents_N == NO_DOCUMENT
    starts_N = layout.anchor_indices_N - torch.where(is_padding_N, 0, layout.anchor_positions_N)
    return Visible(
        starts_N=starts_N.int(),
        anchors_N=layout.anchor_indices_N.int(),
        num_context=layout.num_context,
        block_size=layout.block_size,
        window=window,
        is_causal=is_causal,
    )
