from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflashctl_remote.data.loader import BatchPlan
from dflashctl_remote.data.shards import Document
from dflashctl_remote.spec.errors import BadInput


@dataclass
class Lengths:
    """A dataset that is only lengths; document i is made of tokens i."""

    lengths: np.ndarray
    first_anchors: np.ndarray
    folder: Path = Path("d")

    def __len__(self):
        return len(self.lengths)

    def tokens(self, index, *, max_tokens):
        ids = np.full(self.lengths[index], index)[:max_tokens]
        return Document(ids, np.arange(len(ids)) >= self.first_anchors[index])


def dataset(lengths, first_anchors=None):
    return Lengths(np.array(lengths), np.zeros(len(lengths), int) if first_anchors is None else np.array(first_anchors))


def plan(lengths, *, T=64, max_length=64, seed=0, first_anchors=None):
    return BatchPlan(dataset(lengths, first_anchors), tokens_per_batch=T, max_length_tokens=max_length, seed=seed)


def epoch(one, number=0):
    """Batches of an epoch."""
    first = next(b for b in range(10**6) if one.epoch_of(b) >= number)
    return range(first, next(b for b in range(first, 10**6) if one.epoch_of(b) >= number + 1))


some_lengths = st.lists(st.integers(2, 90), min_size=1, max_size=120)
seeds = st.integers(-(2**63), 2**64)


@given(some_lengths, seeds, st.integers(0, 2))
@settings(max_examples=60, deadline=None)
def test_every_document_appears_exactly_once_an_epoch(lengths, seed, number):
    one = plan(lengths, seed=seed)
    seen = [i for batch in epoch(one, number) for i in one.documents_of(batch).tolist()]
    assert sorted(seen) == list(range(len(lengths)))


@given(some_lengths, seeds, st.integers(8, 80), st.integers(8, 80))
@settings(max_examples=60, deadline=None)
def test_no_row_is_longer_than_the_batch_and_no_document_than_the_cut(lengths, seed, T, max_length):
    one = plan(lengths, T=T, max_length=max_length, seed=seed)
    for batch in epoch(one):
        row = one.row(batch)
        assert len(row.input_ids_T) == T
        assert sum(row.lengths) <= T
        assert max(row.lengths) <= min(T, max_length)


@given(some_lengths, seeds, st.integers(0, 200))
@settings(max_examples=60, deadline=None)
def test_same_seed_gives_the_same_row_wherever_one_starts(lengths, seed, start):
    straight, resumed = plan(lengths, seed=seed), plan(lengths, seed=seed)
    before = [straight.documents_of(b).tolist() for b in range(start + 5)]
    assert [resumed.documents_of(b).tolist() for b in range(start, start + 5)] == before[start:]


@given(some_lengths, seeds, st.lists(st.integers(0, 200), max_size=20))
@settings(max_examples=60, deadline=None)
def test_rows_do_not_depend_on_the_order_in_which_they_are_asked_for(lengths, seed, batches):
    jumping = plan(lengths, seed=seed)
    for batch in batches:
        assert jumping.documents_of(batch).tolist() == plan(lengths, seed=seed).documents_of(batch).tolist()


def test_order_is_the_same_on_every_machine_and_numpy():
    one = plan([10, 20, 30, 40, 50, 60, 20, 30], seed=7)
    assert [one.documents_of(b).tolist() for b in range(8)] == [[7, 2], [4], [3, 6], [1, 0], [5], [3, 1], [2, 7], [5]]


def test_epochs_and_seeds_differ_in_order():
    lengths = [10, 20, 30, 40, 50, 60] * 5
    one = plan(lengths)
    assert [one.documents_of(b).tolist() for b in epoch(one, 0)] != [
        one.documents_of(b).tolist() for b in epoch(one, 1)
    ]
    other = plan(lengths, seed=1)
    assert [one.documents_of(b).tolist() for b in range(5)] != [other.documents_of(b).tolist() for b in range(5)]


def test_row_holds_the_tokens_of_its_documents():
    one = plan([40, 20])
    row, documents = one.row(0), one.documents_of(0)
    for position, index in enumerate(documents.tolist()):
        assert set(row.input_ids_T[row.document_ids_T == position].tolist()) == {index}


def test_epoch_grows_evenly_from_0():
    one = plan([60] * 4)
    assert [one.epoch_of(b) for b in range(6)] == [0, 0.25, 0.5, 0.75, 1, 1.25]


def test_documents_of_a_row_have_similar_lengths():
    one = plan([60, 4] * 50, T=64)
    for batch in epoch(one):
        lengths = one.row(batch).lengths
        assert min(lengths) >= max(lengths) / 2


def test_log_normal_lengths_fill_rows_and_waste_little_of_the_target():
    # The users' data: mean 2,068 tokens, P90 4,200, here cut at 4,096.
    lengths = np.minimum(np.random.Generator(np.random.PCG64(0)).lognormal(7.33, 0.75, 5000).astype(int) + 50, 4096)
    report = plan(lengths, T=8192, max_length=4096).packing()
    assert report.fill_share > 0.9
    assert report.padded_waste_share < 0.06


def test_packing_is_counted_by_hand():
    report = plan([60, 30, 30]).packing()
    assert report.num_rows == 2
    assert report.fill_share == pytest.approx(120 / 128)
    assert report.padded_waste_share == 0
    assert plan([40, 20]).packing().padded_waste_share == pytest.approx(20 / 80)


def test_documents_where_no_block_can_start_are_left_out_and_counted():
    one = plan([10, 10, 50], max_length=20, first_anchors=[0, -1, 19])
    assert one.num_unusable == 2
    assert [one.documents_of(b).tolist() for b in range(3)] == [[0], [0], [0]]


def test_cut_documents_are_counted():
    assert plan([10, 30, 50], max_length=20).num_cut == 2


def test_cut_is_never_beyond_the_row():
    assert plan([50], T=32, max_length=64).row(0).lengths == (32,)


def test_dataset_without_a_usable_document_is_refused():
    with pytest.raises(BadInput, match="found none of 1 with two supervised tokens in a row"):
        plan([10], first_anchors=[-1])
