from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dflashctl_remote.data.pack import PackedRow
from dflashctl_remote.drafter.anchors import (
    Anchors,
    anchor_candidates,
    sample_anchors,
    share_out,
    slot_supervision,
)
from dflashctl_remote.drafter.masks import NO_DOCUMENT

MakeRow = Callable[..., PackedRow]


def test_an_anchor_and_its_follower_are_both_supervised_and_of_one_document(make_row: MakeRow) -> None:
    row = make_row((5, 4), total=11, prompt=2)
    assert anchor_candidates(row).tolist() == [2, 3, 7]


def test_anchors_are_sorted_and_padded_to_the_number_asked_for(make_row: MakeRow) -> None:
    anchors = sample_anchors(make_row((9, 8), total=20), num_anchors=30, seed=1, batch=0)
    real = anchors.indices_N[: anchors.num_real]
    assert anchors.num_real == 11
    assert real.tolist() == sorted(set(real.tolist()))
    assert anchors.documents_N[anchors.num_real :].tolist() == [NO_DOCUMENT] * 19


def test_anchors_are_a_function_of_seed_and_batch_alone(make_row: MakeRow) -> None:
    row = make_row((60, 40), total=100)

    def drawn(seed: int, batch: int) -> list[int]:
        return sample_anchors(row, num_anchors=10, seed=seed, batch=batch).indices_N.tolist()

    assert drawn(1, 7) == drawn(1, 7)
    assert drawn(1, 7) != drawn(1, 8)
    assert drawn(1, 7) != drawn(2, 7)


def test_each_document_gets_anchors_in_proportion_to_its_supervised_tokens(make_row: MakeRow) -> None:
    row = make_row((62, 32, 12), total=110, prompt=2)
    anchors = sample_anchors(row, num_anchors=20, seed=0, batch=0)
    counts = np.bincount(anchors.documents_N[: anchors.num_real], minlength=3)
    assert counts.tolist() == [12, 6, 2]


@given(
    total=st.integers(0, 50),
    sizes=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=8),
)
def test_share_out_gives_all_it_can_and_nobody_more_than_its_limit(total: int, sizes: list[tuple[int, int]]) -> None:
    claims = np.array([claim for claim, _ in sizes])
    limits = np.array([min(limit, claim) for claim, limit in sizes])
    shares = share_out(total, claims, limits)
    assert (shares <= limits).all() and (shares >= 0).all()
    assert shares.sum() == min(total, limits.sum())


def test_share_out_gives_what_is_left_over_to_the_largest_remainders() -> None:
    claims = np.array([60, 33, 7])
    assert share_out(10, claims, claims).tolist() == [6, 3, 1]


@given(total=st.integers(1, 200), sizes=st.lists(st.integers(1, 60), min_size=1, max_size=12))
def test_share_out_is_within_one_of_everybodys_quota(total: int, sizes: list[int]) -> None:
    claims = np.array(sizes)
    quotas = total * claims / claims.sum()
    assert np.abs(share_out(total, claims, np.full(len(sizes), 1000)) - quotas).max() < 1


def anchors_at(row: PackedRow, *indices: int) -> Anchors:
    at = np.array(indices)
    return Anchors(at, row.positions_T[at], row.document_ids_T[at], len(at))


def test_slots_count_until_the_first_unsupervised_one(make_row: MakeRow) -> None:
    row = make_row((10,), total=12, prompt=1)
    row.is_supervised_T[5] = False
    assert slot_supervision(row, anchors_at(row, 2), 6)[0].tolist() == [False, True, True, False, False, False]


def test_slots_end_with_the_document(make_row: MakeRow) -> None:
    row = make_row((6, 6), total=12, prompt=0)
    assert slot_supervision(row, anchors_at(row, 4), 4)[0].tolist() == [False, True, False, False]


def test_slots_end_with_the_row(make_row: MakeRow) -> None:
    row = make_row((6,), total=6, prompt=0)
    assert slot_supervision(row, anchors_at(row, 4), 4)[0].tolist() == [False, True, False, False]


def test_a_padding_anchor_scores_nothing(make_row: MakeRow) -> None:
    row = make_row((6,), total=8, prompt=0)
    anchors = sample_anchors(row, num_anchors=9, seed=0, batch=0)
    assert not slot_supervision(row, anchors, 4)[anchors.num_real :].any()
