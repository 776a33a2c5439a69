from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dflashctl_remote.data.pack import PackedRow
from dflashctl_remote.drafter.anchors import Anchors, sample_anchors
from dflashctl_remote.drafter.scored import Scored, scored_slots
from dflashctl_remote.spec.objective import ObjectiveSpec

MakeRow = Callable[..., PackedRow]
ONE = Anchors(np.array([4]), np.array([4]), np.array([0]), 1)


def test_labels_are_the_targets_argmax_one_position_before_the_slot(
    make_config: Any, make_row: MakeRow, make_states: Any, ends: Any
) -> None:
    row = make_row((9,), total=9)
    final_TE = make_states(row, make_config()).final_TE
    scored = scored_slots(ends, row, final_TE, ONE, ObjectiveSpec(), 4)
    top1 = (final_TE @ ends.head_VE.T).argmax(-1)
    assert scored.slots_R.tolist() == [1, 2, 3]
    assert scored.labels_R.tolist() == top1[[4, 5, 6]].tolist()
    assert scored.final_RE is None


def test_data_labels_are_the_tokens_of_the_text(
    make_config: Any, make_row: MakeRow, make_states: Any, ends: Any
) -> None:
    row = make_row((9,), total=9)
    final_TE = make_states(row, make_config()).final_TE
    scored = scored_slots(ends, row, final_TE, ONE, ObjectiveSpec(labels="data"), 4)
    assert scored.labels_R.tolist() == row.input_ids_T[[5, 6, 7]].tolist()


def test_soft_labels_bring_the_clean_final_state_before_each_slot(
    make_config: Any, make_row: MakeRow, make_states: Any, ends: Any
) -> None:
    row = make_row((9,), total=9)
    final_TE = make_states(row, make_config()).final_TE
    scored = scored_slots(ends, row, final_TE, ONE, ObjectiveSpec(loss="soft_kl"), 4)
    assert scored.final_RE is not None
    assert torch.equal(scored.final_RE, final_TE[[4, 5, 6]])


def test_overlapping_blocks_share_their_labels(
    make_config: Any, make_row: MakeRow, make_states: Any, ends: Any
) -> None:
    row = make_row((40,), total=40)
    final_TE = make_states(row, make_config()).final_TE
    anchors = sample_anchors(row, num_anchors=30, seed=0, batch=0)
    scored = scored_slots(ends, row, final_TE, anchors, ObjectiveSpec(), 4)
    top1 = (final_TE @ ends.head_VE.T).argmax(-1)
    predicted = torch.from_numpy(anchors.indices_N)[scored.blocks_R] + scored.slots_R
    assert torch.equal(scored.labels_R, top1[predicted - 1])


def drawn(make_config: Any, make_row: MakeRow, make_states: Any, ends: Any) -> Scored:
    row = make_row((12, 9), total=24)
    anchors = sample_anchors(row, num_anchors=12, seed=0, batch=0)
    return scored_slots(ends, row, make_states(row, make_config()).final_TE, anchors, ObjectiveSpec(), 4)


def test_groups_of_blocks_put_together_are_the_whole(
    make_config: Any, make_row: MakeRow, make_states: Any, ends: Any
) -> None:
    whole = drawn(make_config, make_row, make_states, ends)
    parts = [whole.blocks(first, first + 5, 4) for first in (0, 5, 10)]
    assert torch.equal(torch.cat([part.labels_R for part in parts]), whole.labels_R)
    assert torch.equal(torch.cat([part.slots_R for part in parts]), whole.slots_R)
    for part, first in zip(parts, (0, 5, 10), strict=True):
        assert torch.equal(part.rows_R, part.blocks_R * 4 + part.slots_R)
        assert not len(part.blocks_R) or (part.blocks_R.min() >= 0 and part.blocks_R.max() < 5)
        assert torch.equal(
            part.blocks_R + first, whole.blocks_R[(whole.blocks_R >= first) & (whole.blocks_R < first + 5)]
        )


def test_counts_are_those_of_each_block(make_config: Any, make_row: MakeRow, make_states: Any, ends: Any) -> None:
    whole = drawn(make_config, make_row, make_states, ends)
    assert whole.counts_N.tolist() == torch.bincount(whole.blocks_R, minlength=12).tolist()
    assert whole.counts_N.sum() == len(whole.rows_R)
