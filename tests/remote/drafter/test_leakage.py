"""What a block may not know: the target and the drafter together, from tokens to block outputs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dflashctl_remote.data.pack import PackedRow
from dflashctl_remote.drafter.anchors import Anchors
from dflashctl_remote.drafter.attention import by_document_attend, eager_attend
from dflashctl_remote.drafter.model import Drafter
from dflashctl_remote.drafter.objective import block_states, row_layout
from dflashctl_remote.spec.drafter import DrafterConfig
from dflashctl_remote.target.load import Target

TAPS = (1, 3)
ANCHORS = (9, 14, 15, 33)
"""Indices in the row; the last one is in the second document, which starts at 24."""


@pytest.fixture(params=["full", "mixed"])
def drafter(
    request: pytest.FixtureRequest, target: Target, make_config: Callable[..., DrafterConfig], make_drafter: Any
) -> Drafter:
    kinds: dict[str, dict[str, object]] = {
        "full": {},
        "mixed": {"layer_types": ("sliding_attention", "full_attention"), "sliding_window": 6},
    }
    config = make_config(
        hidden_size=target.shape.hidden_size, vocab_size=300, mask_token_id=3, tap_layers=TAPS, **kinds[request.param]
    )
    return make_drafter(config)


@pytest.fixture
def row(make_row: Callable[..., PackedRow]) -> PackedRow:
    return make_row((24, 20), total=50)


def with_other_tokens(row: PackedRow, *indices: int) -> PackedRow:
    ids = row.input_ids_T.copy()
    for index in indices:
        ids[index] = (ids[index] + 17) % 299 + 1
    return PackedRow(ids, row.positions_T, row.document_ids_T, row.is_supervised_T, row.lengths)


@torch.no_grad()
def outputs(drafter: Drafter, target: Target, row: PackedRow) -> Tensor:
    """Block outputs [N, K, D] of the fixed anchors."""
    at = np.array(ANCHORS)
    anchors = Anchors(at, row.positions_T[at], row.document_ids_T[at], len(at))
    layout = row_layout(row, anchors, drafter.config.block_size, device=target.device)
    taps_TF = target.states(row, TAPS).taps_TF
    hidden_QD = block_states(drafter, target, row, taps_TF, layout, attention="eager")
    return hidden_QD.unflatten(0, (len(ANCHORS), drafter.config.block_size))


def test_no_token_at_or_after_the_anchor_changes_the_context_that_its_block_sees(
    target: Target, row: PackedRow
) -> None:
    clean = target.states(row, TAPS).taps_TF
    for anchor in ANCHORS[:3]:
        for indices in (range(anchor, 24), [anchor], [anchor + 1], [23]):
            changed = target.states(with_other_tokens(row, *indices), TAPS).taps_TF
            torch.testing.assert_close(changed[:anchor], clean[:anchor], rtol=1e-6, atol=1e-6)
            assert not torch.allclose(changed[indices[0]], clean[indices[0]], rtol=1e-3, atol=1e-3)


def test_no_token_after_the_anchor_changes_its_blocks_outputs(drafter: Drafter, target: Target, row: PackedRow) -> None:
    clean = outputs(drafter, target, row)
    for block, anchor in enumerate(ANCHORS):
        for indices in (range(anchor + 1, 44), [anchor + 1], [anchor + 3]):
            changed = outputs(drafter, target, with_other_tokens(row, *indices))
            torch.testing.assert_close(changed[block], clean[block], rtol=1e-6, atol=1e-6)


def test_the_anchor_and_the_token_before_it_do_change_them(drafter: Drafter, target: Target, row: PackedRow) -> None:
    """Else the tests above could not fail."""
    clean = outputs(drafter, target, row)
    for block, anchor in enumerate(ANCHORS):
        for index in (anchor - 1, anchor):
            changed = outputs(drafter, target, with_other_tokens(row, index))
            assert not torch.allclose(changed[block], clean[block], rtol=1e-3, atol=1e-3)


def test_another_document_changes_nothing(drafter: Drafter, target: Target, row: PackedRow) -> None:
    clean = outputs(drafter, target, row)
    changed = outputs(drafter, target, with_other_tokens(row, *range(24)))
    torch.testing.assert_close(changed[3], clean[3], rtol=1e-6, atol=1e-6)
    changed = outputs(drafter, target, with_other_tokens(row, *range(24, 44)))
    torch.testing.assert_close(changed[:3], clean[:3], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("attend", [eager_attend, by_document_attend])
def test_blocks_never_see_each_other(drafter: Drafter, target: Target, row: PackedRow, attend: Any) -> None:
    """No gradient of one block's outputs reaches another block's inputs, exactly."""
    at = np.array(ANCHORS)
    anchors = Anchors(at, row.positions_T[at], row.document_ids_T[at], len(at))
    config = drafter.config
    layout = row_layout(row, anchors, config.block_size, device=target.device)
    context_TD = drafter.context_states(target.states(row, TAPS).taps_TF)
    context = drafter.context_keys_values(context_TD, layout.context_positions_T)
    block_QD = torch.randn(layout.num_queries, config.hidden_size, generator=torch.Generator().manual_seed(0))
    block_QD.requires_grad_()
    hidden_QD = drafter(block_QD, layout.block_positions_Q(), context, attend(config, layout))
    for block in range(len(ANCHORS)):
        own = slice(block * config.block_size, (block + 1) * config.block_size)
        (gradient,) = torch.autograd.grad(hidden_QD[own].square().sum(), block_QD, retain_graph=True)
        assert gradient[own].abs().sum(dim=1).min() > 0
        gradient[own] = 0
        assert not gradient.any()
