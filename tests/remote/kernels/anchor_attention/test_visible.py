"""The ranges and tiles against the rule that the drafter defines, over every pair of query and key."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from dflashctl_remote.drafter.masks import NO_DOCUMENT, Layout, dense_mask, visible
from dflashctl_remote.kernels.anchor_attention.flex import block_mask
from dflashctl_remote.kernels.anchor_attention.reference import dense
from dflashctl_remote.kernels.anchor_attention.visible import TILE, Visible, visible_tiles

LENGTHS = (300, 40, 513, 1)


def layout_of(num_anchors: int, block_size: int, num_padding: int = 0, *, seed: int = 0, pad_row: int = 37) -> Layout:
    """Documents, padding at the row's end, random sorted anchors, padding anchors."""
    positions = torch.cat([torch.arange(length) for length in (*LENGTHS, pad_row)])
    documents = torch.cat(
        [torch.full((length,), at) for at, length in enumerate(LENGTHS)] + [torch.full((pad_row,), -1)]
    )
    generator = torch.Generator().manual_seed(seed)
    at = torch.randperm(sum(LENGTHS), generator=generator)[:num_anchors].sort().values
    none = torch.zeros(num_padding, dtype=torch.int64)
    return Layout(
        context_positions_T=positions,
        context_documents_T=documents,
        anchor_indices_N=torch.cat((at, none)),
        anchor_positions_N=torch.cat((positions[at], none)),
        anchor_documents_N=torch.cat((documents[at], none + NO_DOCUMENT)),
        block_size=block_size,
    )


def tiles_of(grid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(anything visible, everything visible) of each tile; what lies outside the grid is not visible."""
    rows, columns = grid.shape
    padded = F.pad(grid, (0, -columns % TILE, 0, -rows % TILE))
    tiles = padded.unflatten(0, (-1, TILE)).unflatten(2, (-1, TILE)).transpose(1, 2).flatten(2)
    return tiles.any(dim=2), tiles.all(dim=2)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 5, 200])
@pytest.mark.parametrize("block_size", [3, 10, 16])
def test_the_ranges_are_the_drafters_rule(block_size: int, window: int | None, is_causal: bool) -> None:
    layout = layout_of(60, block_size, num_padding=3)
    ranges = visible(layout, window=window, is_causal=is_causal)
    assert torch.equal(dense(ranges), dense_mask(layout, window=window, is_causal=is_causal))


@pytest.mark.parametrize("window", [None, 1, 5, 200])
@pytest.mark.parametrize(("block_size", "num_anchors"), [(16, 64), (16, 61), (10, 40), (3, 100), (200, 5)])
def test_no_visible_pair_is_left_out_and_full_tiles_are_full(
    block_size: int, num_anchors: int, window: int | None
) -> None:
    ranges = visible(layout_of(num_anchors, block_size, num_padding=2), window=window, is_causal=False)
    partial, full = visible_tiles(ranges)
    any_visible, all_visible = tiles_of(dense(ranges))
    assert not (any_visible & ~(partial | full)).any()
    assert not (full & ~all_visible).any()
    assert not (full & partial).any()


def test_sorted_anchors_without_a_window_see_the_least_number_of_tiles() -> None:
    """Blocks of 16 and a context of whole tiles: nothing is visited in vain, and what is full is known to be."""
    ranges = visible(layout_of(128, 16, pad_row=42), window=None, is_causal=False)
    assert ranges.num_context % TILE == 0
    partial, full = visible_tiles(ranges)
    any_visible, all_visible = tiles_of(dense(ranges))
    assert torch.equal(partial | full, any_visible)
    assert torch.equal(full, all_visible)
    assert full.any()


def test_anchors_in_any_order_lose_nothing() -> None:
    layout = layout_of(64, 16)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    shuffled = replace(
        layout,
        anchor_indices_N=layout.anchor_indices_N[order],
        anchor_positions_N=layout.anchor_positions_N[order],
        anchor_documents_N=layout.anchor_documents_N[order],
    )
    ranges = visible(shuffled, window=30, is_causal=True)
    partial, full = visible_tiles(ranges)
    assert not (tiles_of(dense(ranges))[0] & ~(partial | full)).any()


def test_the_block_mask_lists_these_tiles_for_queries_and_for_keys() -> None:
    ranges = visible(layout_of(64, 16), window=None, is_causal=False)
    partial, full = visible_tiles(ranges)
    mask = block_mask(ranges)
    assert torch.equal(mask.to_dense()[0, 0].bool(), partial | full)
    assert mask.q_num_blocks is not None and mask.full_q_num_blocks is not None
    assert torch.equal(mask.q_num_blocks[0, 0], partial.sum(dim=0, dtype=torch.int32))
    assert torch.equal(mask.full_q_num_blocks[0, 0], full.sum(dim=0, dtype=torch.int32))
    assert mask.seq_lengths == (ranges.num_queries, ranges.num_keys)


def test_a_row_of_queries_always_sees_itself() -> None:
    """Else a softmax over nothing would be NaN."""
    none = torch.zeros(2, dtype=torch.int32)
    assert dense(Visible(none, none, num_context=5, block_size=3)).any(dim=1).all()
