import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from loss_problems import VOCAB, WIDTH, make_head, make_rows
from torch.utils._python_dispatch import TorchDispatchMode

from dflashctl_remote.losses.base import Rows
from dflashctl_remote.losses.soft_kl.loss import row_loss
from dflashctl_remote.spec.objective import ObjectiveSpec

SPEC = ObjectiveSpec(loss="soft_kl")


def test_a_case_worked_by_hand() -> None:
    head = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    one = torch.ones(1, dtype=torch.int64)
    states = torch.tensor([[math.log(3.0), 0.0]], requires_grad=True)
    final = torch.tensor([[0.0, 0.0]])
    found = row_loss(Rows(states, final, one, one, 0 * one, 1, 4), head, SPEC)
    # p = (1/2, 1/2), q = (3/4, 1/4): 1/2 ln(2/3) + 1/2 ln 2
    assert found.loss_R.tolist() == pytest.approx([0.5 * math.log(4 / 3)])
    assert found.cross_entropy_R.tolist() == pytest.approx([math.log(4.0)])
    (grad,) = torch.autograd.grad(found.loss_R.sum(), states)
    assert grad.flatten().tolist() == pytest.approx([0.25, -0.25])


def test_equal_distributions_cost_nothing_and_push_nowhere() -> None:
    rows = make_rows()
    rows = replace(rows, final_RE=rows.states_RD.detach().clone())
    found = row_loss(rows, make_head(), SPEC)
    (grad,) = torch.autograd.grad(found.loss_R.sum(), rows.states_RD)
    assert not found.loss_R.any() and not grad.any()


def test_the_gradient_keeps_its_size_at_high_temperatures() -> None:
    """T^2 makes up for it: for large T the gradient tends to (z - u) / V, whatever T is."""
    rows, head = make_rows(), make_head()
    sizes = []
    for temperature in (100.0, 1000.0):
        found = row_loss(rows, head, SPEC.model_copy(update={"temperature": temperature}))
        sizes.append(torch.autograd.grad(found.loss_R.sum(), rows.states_RD)[0])
    logits = (rows.states_RD.detach() - rows.final_RE) @ head.T
    limit = (logits - logits.mean(dim=1, keepdim=True)) @ head / VOCAB
    assert float((sizes[1] - limit).norm() / limit.norm()) < 0.01
    assert float((sizes[0] - limit).norm() / limit.norm()) < 0.1


@pytest.mark.parametrize("chunk_rows", [1, 8, 28, 100])
def test_chunks_change_nothing(chunk_rows: int) -> None:
    rows, head = make_rows(), make_head()
    wanted, found = row_loss(rows, head, SPEC), row_loss(rows, head, chunked(chunk_rows))
    torch.testing.assert_close(found.loss_R, wanted.loss_R)
    torch.testing.assert_close(
        torch.autograd.grad(found.loss_R.sum(), rows.states_RD),
        torch.autograd.grad(wanted.loss_R.sum(), rows.states_RD),
    )


def test_logits_of_all_rows_never_exist_together() -> None:
    seen: list[int] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            # The head, transposed, has as many columns and is no logits.
            if isinstance(out, torch.Tensor) and out.ndim == 2 and out.shape[1] == VOCAB and len(out) != WIDTH:
                seen.append(len(out))
            return out

    rows, head = make_rows((7, 7, 7)), make_head()
    with Watch():
        found = row_loss(rows, head, chunked(12))
        found.loss_R.sum().backward()
    assert seen and max(seen) == 3


def test_its_place_is_a_target_whose_states_are_there() -> None:
    with pytest.raises(AssertionError, match="final states"):
        row_loss(replace(make_rows(), final_RE=None), make_head(), SPEC)


def chunked(rows: int) -> ObjectiveSpec:
    return SPEC.model_copy(update={"loss_chunk_rows": rows})
