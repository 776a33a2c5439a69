import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from loss_problems import WIDTH, blocks_of, make_head, make_rows

from dflashctl_remote.losses.confidence.head import ConfidenceHead
from dflashctl_remote.losses.confidence.loss import confidence_sum
from dflashctl_remote.losses.registry import row_terms
from dflashctl_remote.spec.objective import ObjectiveSpec


@pytest.fixture
def head() -> ConfidenceHead:
    made = ConfidenceHead(WIDTH)
    with torch.no_grad():
        made.weight.normal_(generator=torch.Generator().manual_seed(3))
        made.bias.fill_(0.3)
    return made


def test_value_and_gradients_equal_loops_in_fp64(head: ConfidenceHead) -> None:
    rows, spec = make_rows(), ObjectiveSpec(confidence_weight=0.5, gamma=3.0)
    top1 = (rows.states_RD.detach() @ make_head().T).argmax(1)
    states = rows.states_RD.detach().double().requires_grad_()
    weight, bias = (p.detach().double().requires_grad_() for p in head.parameters())
    wanted = torch.zeros((), dtype=torch.float64)
    for block in blocks_of(rows):
        is_right = True
        for row in block:
            is_right = is_right and bool(top1[row] == rows.labels_R[row])
            chance = torch.sigmoid(weight[0] @ states[row] + bias[0])
            decay = math.exp(-(int(rows.slots_R[row]) - 1) / 3.0)
            wanted = wanted - decay * (chance if is_right else 1 - chance).log()
    found = confidence_sum(rows, top1, head, spec)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)
    ours = torch.autograd.grad(found, (rows.states_RD, head.weight, head.bias))
    for mine, theirs in zip(ours, torch.autograd.grad(wanted, (states, weight, bias)), strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("chosen", [{}, {"weighting": "d_pace"}, {"weighting": "streak"}, {"loss": "soft_kl"}], ids=str)
def test_it_is_added_to_any_loss_under_any_weighting(head: ConfidenceHead, chosen: dict[str, Any]) -> None:
    rows, spec = make_rows(), ObjectiveSpec(confidence_weight=0.5, **chosen)
    alone = row_terms(rows, make_head(), spec.model_copy(update={"confidence_weight": 0.0}))
    both = row_terms(rows, make_head(), spec, confidence=head)
    added = 0.5 * confidence_sum(rows, alone.top1_R, head, spec)
    torch.testing.assert_close(both.loss_sum, alone.loss_sum + added)
    assert torch.equal(both.weight_sum, alone.weight_sum)


def test_a_new_head_says_even_odds_and_leaves_the_drafter_alone() -> None:
    rows, head = make_rows(), ConfidenceHead(WIDTH)
    assert head(rows.states_RD).tolist() == [0.0] * len(rows.labels_R)
    found = confidence_sum(rows, rows.labels_R, head, ObjectiveSpec(confidence_weight=1.0))
    states, weight, bias = torch.autograd.grad(found, (rows.states_RD, head.weight, head.bias))
    assert not states.any() and weight.any() and bias.any()


def test_extreme_odds_stay_finite(head: ConfidenceHead) -> None:
    rows = make_rows(scale=1e4)
    found = confidence_sum(rows, rows.labels_R, head, ObjectiveSpec(confidence_weight=1.0))
    grads = torch.autograd.grad(found, (rows.states_RD, head.weight, head.bias))
    assert found.isfinite() and all(grad.isfinite().all() for grad in grads)


def test_the_heads_weight_and_the_head_go_together(head: ConfidenceHead) -> None:
    rows = replace(make_rows(), final_RE=None)
    with pytest.raises(AssertionError, match="goes with its weight"):
        row_terms(rows, make_head(), ObjectiveSpec(), confidence=head)
    with pytest.raises(AssertionError, match="goes with its weight"):
        row_terms(rows, make_head(), ObjectiveSpec(confidence_weight=1.0))
