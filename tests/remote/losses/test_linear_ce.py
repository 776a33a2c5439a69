import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from dflashctl_remote.losses.linear_ce import linear_argmax, linear_cross_entropy


@pytest.fixture
def problem() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "states": torch.randn(37, 24, generator=generator, dtype=torch.float64),
        "head": torch.randn(101, 24, generator=generator, dtype=torch.float64),
        "labels": torch.randint(0, 101, (37,), generator=generator),
        "weights": torch.rand(37, generator=generator, dtype=torch.float64),
    }


@pytest.mark.parametrize("chunk_rows", [1, 5, 37, 64])
def test_value_and_gradient_equal_torch_cross_entropy(problem: dict[str, torch.Tensor], chunk_rows: int) -> None:
    states = problem["states"].clone().requires_grad_()
    plain = F.cross_entropy(states @ problem["head"].T, problem["labels"], reduction="none")
    (wanted,) = torch.autograd.grad(3 * (plain * problem["weights"]).sum(), states)

    ours = states.detach().float().requires_grad_()
    head, weights = problem["head"].float(), problem["weights"].float()
    out = linear_cross_entropy(ours, head, problem["labels"], weights, chunk_rows=chunk_rows)
    (got,) = torch.autograd.grad(3 * out.loss_sum, ours)

    torch.testing.assert_close(out.cross_entropy_R.double(), plain.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)
    assert torch.equal(out.top1_R, (problem["states"] @ problem["head"].T).argmax(-1))


def test_a_case_worked_by_hand() -> None:
    states = torch.tensor([[1.0, 0.0]])
    head = torch.tensor([[math.log(2.0), 5.0], [0.0, 7.0], [0.0, -3.0]])
    out = linear_cross_entropy(states, head, torch.tensor([0]), torch.tensor([0.5]))
    # logits ln2, 0, 0: probabilities 1/2, 1/4, 1/4
    assert float(out.loss_sum.detach()) == pytest.approx(0.5 * math.log(2.0))
    assert out.top1_R.tolist() == [0]


def test_rows_of_weight_zero_get_no_gradient(problem: dict[str, torch.Tensor]) -> None:
    states = problem["states"].float().requires_grad_()
    weights = problem["weights"].float()
    weights[::2] = 0
    out = linear_cross_entropy(states, problem["head"].float(), problem["labels"], weights)
    out.loss_sum.backward()
    assert states.grad is not None
    assert not states.grad[::2].any() and states.grad[1::2].any(dim=1).all()


def test_no_gradient_reaches_the_frozen_head(problem: dict[str, torch.Tensor]) -> None:
    states = problem["states"].float().requires_grad_()
    head = problem["head"].float().requires_grad_()
    linear_cross_entropy(states, head, problem["labels"], problem["weights"].float()).loss_sum.backward()
    assert head.grad is None


def test_logits_of_all_rows_never_exist_together(problem: dict[str, torch.Tensor]) -> None:
    seen: list[int] = []
    num_columns = 24  # of the head: transposed it has as many rows, and is no logits

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.ndim == 2 and out.shape[-1] == 101 and len(out) != num_columns:
                seen.append(len(out))
            return out

    with Watch():
        linear_cross_entropy(
            problem["states"].float(),
            problem["head"].float(),
            problem["labels"],
            problem["weights"].float(),
            chunk_rows=8,
        )
    assert seen and max(seen) <= 8


def test_no_rows_give_a_loss_of_zero() -> None:
    states = torch.zeros(0, 4, requires_grad=True)
    out = linear_cross_entropy(states, torch.randn(9, 4), torch.zeros(0, dtype=torch.int64), torch.zeros(0))
    out.loss_sum.backward()
    assert float(out.loss_sum.detach()) == 0


def test_argmax_in_chunks_equals_argmax_at_once(problem: dict[str, torch.Tensor]) -> None:
    states, head = problem["states"].float(), problem["head"].float()
    assert torch.equal(linear_argmax(states, head, chunk_rows=6), (states @ head.T).argmax(-1))
