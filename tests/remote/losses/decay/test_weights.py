import math

import pytest
from loss_problems import given

from dflashctl_remote.losses.decay.weights import row_weights
from dflashctl_remote.spec.objective import ObjectiveSpec


def test_a_case_worked_by_hand() -> None:
    rows, losses = given([9.0] * 4, [False] * 4, (3, 1))
    found = row_weights(rows, losses, ObjectiveSpec(gamma=2.0))
    assert found.weights_R.tolist() == pytest.approx([1, math.exp(-0.5), math.exp(-1), 1])
    assert float(found.total) == pytest.approx(2 + math.exp(-0.5) + math.exp(-1))


def test_gamma_follows_the_block_where_it_is_not_given() -> None:
    rows, losses = given([9.0] * 2, [False] * 2, (2,))
    assert row_weights(rows, losses, ObjectiveSpec()).weights_R.tolist() == pytest.approx([1, math.exp(-1 / 4)])
