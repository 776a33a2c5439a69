import math

import pytest
from loss_problems import given

from dflashctl_remote.losses.d_pace.weights import row_weights
from dflashctl_remote.spec.objective import ObjectiveSpec

SPEC = ObjectiveSpec(weighting="d_pace")


def test_a_case_worked_by_hand() -> None:
    """A block of two slots with q = 1/2, 1; one of one slot with q = 0; one without."""
    rows, losses = given([math.log(2.0), 0.0, 1e4], [True] * 3, (2, 1, 0))
    found = row_weights(rows, losses, SPEC)
    # smoothed 3/4, 1: reach 3/4, 3/4; and 1/2
    assert found.weights_R.tolist() == pytest.approx([1.5, 0.75, 0.5])
    assert float(found.total) == 2


def test_full_confidence_weighs_by_the_slots_that_remain() -> None:
    rows, losses = given([0.0] * 5, [True] * 5, (5,))
    assert row_weights(rows, losses, SPEC).weights_R.tolist() == [5, 4, 3, 2, 1]


def test_alpha_one_ignores_the_confidence() -> None:
    rows, losses = given([3.0, 0.1, 8.0, 2.0], [False] * 4, (3, 1))
    spec = ObjectiveSpec(weighting="d_pace", d_pace_alpha=1.0)
    assert row_weights(rows, losses, spec).weights_R.tolist() == [3, 2, 1, 1]


def test_an_unsupervised_tail_counts_as_neither_right_nor_wrong() -> None:
    """The same three slots weigh the same whether the block could have had more or not."""
    rows, losses = given([0.2, 0.4, 0.6], [True] * 3, (3,))
    alpha, reach, wanted = 0.5, 1.0, []
    for cross_entropy in (0.2, 0.4, 0.6):
        reach *= (1 - alpha) * math.exp(-cross_entropy) + alpha
        wanted.append(reach)
    assert row_weights(rows, losses, SPEC).weights_R.tolist() == pytest.approx(
        [sum(wanted), sum(wanted[1:]), wanted[2]]
    )
