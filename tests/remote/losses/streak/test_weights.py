import math

import pytest
import torch
from loss_problems import given

from dflashctl_remote.losses.decay import weights as decay
from dflashctl_remote.losses.streak.weights import row_weights
from dflashctl_remote.spec.objective import ObjectiveSpec


def test_a_case_worked_by_hand() -> None:
    """Right, wrong, right: the wrong slot still counts as on the streak, the one after it does not."""
    rows, losses = given([1.0] * 4, [True, False, True, False], (3, 1))
    found = row_weights(rows, losses, ObjectiveSpec(weighting="streak", gamma=2.0, streak_alpha=3.0))
    wanted = [4.0, 4 * math.exp(-0.5), math.exp(-1), 4.0]
    assert found.weights_R.tolist() == pytest.approx(wanted)
    assert float(found.total) == pytest.approx(sum(wanted))


def test_alpha_zero_is_decay() -> None:
    rows, losses = given([1.0] * 6, [True, True, False, True, False, True], (4, 2))
    found = row_weights(rows, losses, ObjectiveSpec(weighting="streak", streak_alpha=0.0))
    assert torch.equal(found.weights_R, decay.row_weights(rows, losses, ObjectiveSpec()).weights_R)


def test_a_large_alpha_leaves_the_slots_up_to_the_first_wrong_one() -> None:
    rows, losses = given([1.0] * 4, [True, False, True, True], (4,))
    found = row_weights(rows, losses, ObjectiveSpec(weighting="streak", streak_alpha=1e9))
    shares = found.weights_R.double() / found.total
    assert shares[2:].max() < 1e-8 and shares[:2].sum() == pytest.approx(1)
