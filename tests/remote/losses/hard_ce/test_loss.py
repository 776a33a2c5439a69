import math

import pytest
import torch

from dflashctl_remote.losses.base import Rows
from dflashctl_remote.losses.hard_ce.loss import row_loss
from dflashctl_remote.spec.objective import ObjectiveSpec


def test_a_case_worked_by_hand() -> None:
    head = torch.tensor([[math.log(2.0), 5.0], [0.0, 7.0], [0.0, -3.0]])
    one = torch.ones(1, dtype=torch.int64)
    states = torch.tensor([[1.0, 0.0]], requires_grad=True)
    found = row_loss(Rows(states, None, 0 * one, one, 0 * one, 1, 4), head, ObjectiveSpec())
    # logits ln 2, 0, 0: probabilities 1/2, 1/4, 1/4
    assert found.loss_R.tolist() == pytest.approx([math.log(2.0)])
    assert found.cross_entropy_R.tolist() == pytest.approx([math.log(2.0)])
    assert found.top1_R.tolist() == [0]
    (grad,) = torch.autograd.grad(found.loss_R.sum(), states)
    # (1/2 - 1) * head[0] + 1/4 * head[1] + 1/4 * head[2]
    assert grad.flatten().tolist() == pytest.approx([-0.5 * math.log(2.0), -2.5 + 1.75 - 0.75])


def test_each_row_carries_its_own_gradient() -> None:
    head = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    states = torch.randn(2, 4, generator=torch.Generator().manual_seed(1)).requires_grad_()
    ids = torch.tensor([1, 2])
    rows = Rows(states, None, ids, ids, torch.zeros_like(ids), 1, 4)
    found = row_loss(rows, head, ObjectiveSpec())
    (grad,) = torch.autograd.grad(found.loss_R[1] * 3, states)
    plain = torch.nn.functional.cross_entropy(states @ head.T, ids, reduction="none")
    (wanted,) = torch.autograd.grad(plain[1] * 3, states)
    torch.testing.assert_close(grad, wanted)
