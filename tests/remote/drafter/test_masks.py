import pytest
import torch

from dflashctl_remote.drafter.masks import NO_DOCUMENT, Layout, dense_mask


@pytest.fixture
def layout() -> Layout:
    """Documents of 5 and 4 tokens and 2 of padding; anchors at rows 2 and 4, 7, and one of padding; blocks of 3."""
    return Layout(
        context_positions_T=torch.tensor([0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 0]),
        context_documents_T=torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 1, -1, -1]),
        anchor_indices_N=torch.tensor([2, 4, 7, 0]),
        anchor_positions_N=torch.tensor([2, 4, 2, 0]),
        anchor_documents_N=torch.tensor([0, 0, 1, NO_DOCUMENT]),
        block_size=3,
    )


def visible_by_loops(layout: Layout, window: int | None, is_causal: bool) -> torch.Tensor:
    """The rule of the design, in words rather than index arithmetic."""
    num_context, size = layout.num_context, layout.block_size
    grid = torch.zeros(layout.num_queries, num_context + layout.num_queries, dtype=torch.bool)
    for block in range(len(layout.anchor_indices_N)):
        for slot in range(size):
            position = int(layout.anchor_positions_N[block]) + slot
            for token in range(num_context):
                same = int(layout.context_documents_T[token]) == int(layout.anchor_documents_N[block])
                before = token < int(layout.anchor_indices_N[block])
                near = window is None or position - int(layout.context_positions_T[token]) < window
                grid[block * size + slot, token] = same and before and near
            for other in range(size):
                allowed = other <= slot or not is_causal
                near = window is None or abs(other - slot) < window
                grid[block * size + slot, num_context + block * size + other] = allowed and near
    return grid


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 2, 4])
def test_dense_mask_equals_the_rule_written_as_loops(layout: Layout, window: int | None, is_causal: bool) -> None:
    got = dense_mask(layout, window=window, is_causal=is_causal)
    assert torch.equal(got, visible_by_loops(layout, window, is_causal))


def test_a_padding_block_sees_itself_and_nothing_else(layout: Layout) -> None:
    mask = dense_mask(layout, window=None, is_causal=False)
    expected = torch.zeros(3, 11 + 12, dtype=torch.bool)
    expected[:, 11 + 9 :] = True
    assert torch.equal(mask[9:], expected)


def test_the_context_ends_strictly_before_the_anchor(layout: Layout) -> None:
    mask = dense_mask(layout, window=None, is_causal=False)
    assert mask[0, :11].tolist() == [True, True] + [False] * 9


def test_block_positions_count_on_from_the_anchor(layout: Layout) -> None:
    assert layout.block_positions_Q().tolist() == [2, 3, 4, 4, 5, 6, 2, 3, 4, 0, 1, 2]
