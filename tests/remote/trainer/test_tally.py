import numpy as np
import pytest
import torch

from dflashctl_remote.data.pack import PackedRow
from dflashctl_remote.drafter.anchors import Anchors
from dflashctl_remote.drafter.step import StepSums
from dflashctl_remote.trainer.ranks import Ranks
from dflashctl_remote.trainer.tally import Tally, peak_memory_bytes

NOTHING = np.zeros(0, np.int64)


def row(*lengths: int) -> PackedRow:
    return PackedRow(NOTHING, NOTHING, NOTHING, NOTHING.astype(bool), lengths)


def anchors(num_real: int) -> Anchors:
    return Anchors(NOTHING, NOTHING, NOTHING, num_real)


def loss(loss_sum: float, weight_sum: float, scored: list[int], correct: list[int]) -> StepSums:
    return StepSums(torch.tensor([loss_sum, weight_sum, *scored, *correct], dtype=torch.float64))


def test_two_batches_worked_by_hand():
    tally = Tally(block_size=4)
    tally.see(row(30, 10), anchors(5))
    tally.add(loss(6.0, 4.0, [0, 4, 2, 0], [0, 3, 1, 0]))
    tally.see(row(60), anchors(10))
    tally.add(loss(3.0, 2.0, [0, 4, 0, 0], [0, 1, 0, 0]))
    tally.settle(Ranks())
    assert tally.loss == pytest.approx(1.5)  # 9 / 6: by weight, not the mean of the two batches' means
    assert tally.num_scored == 10
    assert tally.accuracy == pytest.approx(0.5)
    assert tally.accuracy_by_slot == (0.5, 0.5, 0.0)
    assert tally.block_ratio == pytest.approx(15 * 4 / 100)
    assert tally.num_tokens == 100


def test_peak_memory_of_a_process_is_in_bytes():
    # A process that has imported torch holds more than 50 MB and less than 1 TB.
    assert 50e6 < peak_memory_bytes(torch.device("cpu")) < 1e12
