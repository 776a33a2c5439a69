"""The training step's pieces give the plain ones' values and gradients, and leave matrices' gradients in `.grad`."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from dflashctl_remote.drafter.ops import PLAIN, StepOps
from dflashctl_remote.kernels.compiled import compiled

STEP = StepOps(is_compiled=False)
PIECES = ["project", "mlp", "norm", "add_norm", "normed_rotated"]


def drawn(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def gradients(outputs: Any, tensors: list[Tensor]) -> list[Tensor]:
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    generator = torch.Generator().manual_seed(1)
    back = [torch.randn(out.shape, generator=generator, dtype=out.dtype) for out in outputs]
    torch.autograd.backward(outputs, back)
    return [tensor.grad for tensor in tensors if tensor.grad is not None]


@pytest.fixture
def traced_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is compiled is traced with its backward pass as on a GPU, and then run by torch: no code is generated."""
    real = torch.compile
    torch._dynamo.reset()
    compiled.cache_clear()
    monkeypatch.setattr(torch, "compile", lambda function, **options: real(function, backend="aot_eager", **options))
    yield
    compiled.cache_clear()
    torch._dynamo.reset()


@pytest.mark.parametrize("name", PIECES)
def test_values_and_gradients_are_the_plain_ones(name: str) -> None:
    assert_plain(name, STEP)


@pytest.mark.parametrize("name", PIECES)
def test_compiled_pieces_give_them_too(name: str, traced_only: None) -> None:
    assert_plain(name, StepOps(is_compiled=True))


def assert_plain(name: str, ops: StepOps) -> None:
    angles = torch.linspace(0, 3, 7 * 4, dtype=torch.float64).view(7, 4)
    rope = (angles.cos(), angles.sin())
    shapes: dict[str, tuple[list[tuple[int, ...]], list[Any]]] = {
        "project": ([(7, 6), (5, 6), (3, 6)], []),
        "mlp": ([(7, 6), (9, 6), (9, 6), (6, 9)], []),
        "norm": ([(7, 6), (6,)], [1e-6]),
        "add_norm": ([(7, 6), (7, 6), (6,)], [1e-6]),
        "normed_rotated": ([(7, 12), (4,)], [1e-6, rope]),
    }
    wanted_in, got_in = drawn(*shapes[name][0]), drawn(*shapes[name][0])
    wanted = getattr(PLAIN, name)(*wanted_in, *shapes[name][1])
    got = getattr(ops, name)(*got_in, *shapes[name][1])
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
    for one, other in zip(gradients(got, got_in), gradients(wanted, wanted_in), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_a_second_backward_pass_adds_to_what_is_there() -> None:
    states, weight = drawn((7, 6), (5, 6))
    gradients(STEP.project(states, weight), [])
    once = weight.grad.clone()  # type: ignore[union-attr]
    gradients(STEP.project(states, weight), [])
    torch.testing.assert_close(weight.grad, 2 * once)


def test_an_output_that_nothing_used_costs_no_gradient() -> None:
    states, used, unused = drawn((7, 6), (5, 6), (3, 6))
    STEP.project(states, used, unused)[0].sum().backward()
    assert used.grad is not None and unused.grad is None
    assert states.grad is not None


def test_frozen_states_and_frozen_weights_get_no_gradient() -> None:
    states, gate, up, down = drawn((7, 6), (9, 6), (9, 6), (6, 9))
    states.requires_grad_(False)
    down.requires_grad_(False)
    STEP.mlp(states, gate, up, down).sum().backward()
    assert states.grad is None and down.grad is None
    assert gate.grad is not None and up.grad is not None


def test_going_back_twice_through_the_mlp_is_refused_not_wrong() -> None:
    """Its backward pass writes over what it kept."""
    states, gate, up, down = drawn((7, 6), (9, 6), (9, 6), (6, 9))
    out = STEP.mlp(states, gate, up, down).sum()
    out.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()
