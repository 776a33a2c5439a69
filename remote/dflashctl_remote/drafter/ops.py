"""The pieces that the drafter's layers are made of: plain, or as the training step wants them.

`Ops` is the mathematics in plain torch: any device, any dtype, any way of taking gradients. `StepOps` gives the same
values, and differs in three ways: gradients of matrices are added to `.grad` by the product that makes them (one
rounding an addition, no second buffer, no pass over the weights), the inner MLP tensor is made again in the backward
pass instead of kept, and on a GPU everything between two matrix products is one compiled kernel. With StepOps the
matrices' gradients are therefore seen in `.grad` alone, never by torch.autograd.grad or hooks.

Axes: T tokens of any kind, D width, I inner width of the MLP, X = heads * C, H heads, C head size.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dflashctl_remote.kernels.compiled import compiled

Rope = tuple[Tensor, Tensor]
"""cos_TC, sin_TC."""


class Ops:
    """Plain torch."""

    def project(self, states_TD: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        """states @ weight.T for each weight."""
        return tuple(F.linear(states_TD, weight) for weight in weights)

    def norm(self, states_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        return _norm(states_TD, weight_D, eps)

    def add_norm(self, stream_TD: Tensor, update_TD: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """(stream + update, its norm)."""
        return _add_norm(stream_TD, update_TD, weight_D, eps)

    def normed_rotated(self, states_TX: Tensor, weight_C: Tensor, eps: float, rope: Rope) -> Tensor:
        """Heads normed and turned by their positions: [T, H*C] -> [H, T, C], a view of [T, H, C]."""
        return _normed_rotated(states_TX, weight_C, eps, *rope)

    def mlp(self, states_TD: Tensor, gate_ID: Tensor, up_ID: Tensor, down_DI: Tensor) -> Tensor:
        """down(silu(gate(states)) * up(states))."""
        return F.linear(_gated(F.linear(states_TD, gate_ID), F.linear(states_TD, up_ID)), down_DI)


class StepOps(Ops):
    """For `drafter_step`."""

    def __init__(self, *, is_compiled: bool) -> None:
        self._piece: Callable[[Callable[..., Any]], Callable[..., Any]] = compiled if is_compiled else _as_it_is

    def project(self, states_TD: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        return _Project.apply(states_TD, *weights)

    def norm(self, states_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        return self._piece(_norm)(states_TD, weight_D, eps)

    def add_norm(self, stream_TD: Tensor, update_TD: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return self._piece(_add_norm)(stream_TD, update_TD, weight_D, eps)

    def normed_rotated(self, states_TX: Tensor, weight_C: Tensor, eps: float, rope: Rope) -> Tensor:
        return self._piece(_normed_rotated)(states_TX, weight_C, eps, *rope)

    def mlp(self, states_TD: Tensor, gate_ID: Tensor, up_ID: Tensor, down_DI: Tensor) -> Tensor:
        return _MLP.apply(states_TD, gate_ID, up_ID, down_DI, self._piece)


PLAIN = Ops()


def step_ops(device: torch.device) -> StepOps:
    """Compiled on a GPU, plain functions on a CPU."""
    return StepOps(is_compiled=device.type == "cuda")


def rotate(states_HTC: Tensor, rope: Rope) -> Tensor:
    """Rotary embedding over the whole head, halves swapped (the neox convention)."""
    cos_TC, sin_TC = rope
    first, second = states_HTC.chunk(2, dim=-1)
    return states_HTC * cos_TC + torch.cat((-second, first), dim=-1) * sin_TC


class _Project(torch.autograd.Function):
    """Several products with one input: its gradient is one tensor, summed by the products themselves."""

    @staticmethod
    def forward(ctx: Any, states_TD: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(states_TD, *weights)
        ctx.set_materialize_grads(False)
        return tuple(F.linear(states_TD, weight) for weight in weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        states_TD, *weights = ctx.saved_tensors
        there = [(g, w) for g, w in zip(gradients, weights, strict=True) if g is not None]
        gradient_TD = None
        for gradient, weight in there:
            if ctx.needs_input_grad[0]:
                gradient_TD = gradient @ weight if gradient_TD is None else gradient_TD.addmm_(gradient, weight)
            _add_to_grad(weight, gradient, states_TD)
        return gradient_TD, *(None for _ in weights)


class _MLP(torch.autograd.Function):
    """Keeps gate and up; the backward pass makes the inner tensor again and writes over all three."""

    @staticmethod
    def forward(
        ctx: Any, states_TD: Tensor, gate_ID: Tensor, up_ID: Tensor, down_DI: Tensor, piece: Callable[..., Any]
    ) -> Tensor:
        gate_TI, up_TI = F.linear(states_TD, gate_ID), F.linear(states_TD, up_ID)
        ctx.save_for_backward(states_TD, gate_TI, up_TI, gate_ID, up_ID, down_DI)
        ctx.piece = piece
        return F.linear(piece(_gated)(gate_TI, up_TI), down_DI)

    @staticmethod
    def backward(ctx: Any, gradient_TD: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        states_TD, gate_TI, up_TI, gate_ID, up_ID, down_DI = ctx.saved_tensors
        inner_TI = gradient_TD @ down_DI
        ctx.piece(_gated_backward_)(gate_TI, up_TI, inner_TI)
        _add_to_grad(down_DI, gradient_TD, inner_TI)
        _add_to_grad(gate_ID, gate_TI, states_TD)
        _add_to_grad(up_ID, up_TI, states_TD)
        if not ctx.needs_input_grad[0]:
            return None, None, None, None, None
        return (gate_TI @ gate_ID).addmm_(up_TI, up_ID), None, None, None, None


def _add_to_grad(weight_XD: Tensor, gradient_TX: Tensor, states_TD: Tensor) -> None:
    if not weight_XD.requires_grad:
        return
    if weight_XD.grad is None:
        weight_XD.grad = gradient_TX.T @ states_TD
    else:
        weight_XD.grad.addmm_(gradient_TX.T, states_TD)


def _norm(states_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    return F.rms_norm(states_TD, weight_D.shape, weight_D, eps)


def _add_norm(stream_TD: Tensor, update_TD: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    stream_TD = stream_TD + update_TD
    return stream_TD, _norm(stream_TD, weight_D, eps)


def _normed_rotated(states_TX: Tensor, weight_C: Tensor, eps: float, cos_TC: Tensor, sin_TC: Tensor) -> Tensor:
    states_HTC = states_TX.unflatten(-1, (-1, weight_C.shape[0])).transpose(0, 1)
    return rotate(_norm(states_HTC, weight_C, eps), (cos_TC, sin_TC))


def _gated(gate_TI: Tensor, up_TI: Tensor) -> Tensor:
    return F.silu(gate_TI) * up_TI


def _gated_backward_(gate_TI: Tensor, up_TI: Tensor, inner_TI: Tensor) -> None:
    """In place: gate and up become their gradients, and the inner tensor's gradient becomes the inner tensor."""
    wide = torch.promote_types(gate_TI.dtype, torch.float32)
    gate, up, gradient = gate_TI.to(wide), up_TI.to(wide), inner_TI.to(wide)
    share = torch.sigmoid(gate)
    silu = gate * share
    of_gate, of_up, inner = gradient * up * share * (1 + gate * (1 - share)), gradient * silu, silu * up
    # Written only now: in fp32 and wider the names above are these tensors.
    gate_TI.copy_(of_gate)
    up_TI.copy_(of_up)
    inner_TI.copy_(inner)


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function
