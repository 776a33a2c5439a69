"""What a decoder computes between its matrix products, one function for what can be one pass over memory.

As they stand they are the reference, and what a CPU runs; `pieces(is_compiled=True)` gives them compiled, one by one:
compiling whole layers makes transformers drop fla's kernels for its fallback and is slower than not compiling.
All compute in float32 at least and round once, at the end.

Axes: T tokens, E width, I width of the MLP, H heads, C head size, R rotary size; of a Gated DeltaNet layer J key
heads, K their size, G value heads, V their size, W width of the short convolution.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any

import torch
import torch._dynamo
from torch import Tensor
from torch.nn import functional as F

_L2_EPS = 1e-6
"""Of transformers and fla alike."""
_MOST_VARIANTS = 64
"""Of a compiled function; torch's 8 may not do for a process that holds many GPUs. Past it, a call raises."""


def rms_norm(x: Tensor, weight: Tensor, eps: float, is_zero_centred: bool) -> Tensor:
    """Root mean square norm over the last axis; a zero-centred weight (Qwen3-Next, Qwen3.5) is kept minus one."""
    wide = _wide(x)
    scale = weight.to(wide.dtype) + 1 if is_zero_centred else weight.to(wide.dtype)
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * scale).to(x.dtype)


def gated_norm(x_TGV: Tensor, gate: Tensor, weight_V: Tensor, eps: float) -> Tensor:
    """norm(x) * silu(gate) in rows of G*V; the gate has T, then G*V in any shape: [T, G*V]."""
    wide = _wide(x_TGV)
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight_V.to(wide.dtype)
    gate_TGV = _wide(gate).reshape(x_TGV.shape)
    return (normed * F.silu(gate_TGV)).to(x_TGV.dtype).flatten(1)


def swiglu(gate_TI: Tensor, up_TI: Tensor) -> Tensor:
    return (F.silu(_wide(gate_TI)) * _wide(up_TI)).to(gate_TI.dtype)


def output_gate(x_THC: Tensor, gate_THC: Tensor) -> Tensor:
    """x * sigmoid(gate) in rows: [T, H*C]."""
    return (_wide(x_THC) * torch.sigmoid(_wide(gate_THC))).to(x_THC.dtype).flatten(1)


def rotated(
    q_THC: Tensor,
    k_TJC: Tensor,
    q_weight_C: Tensor | None,
    k_weight_C: Tensor | None,
    eps: float,
    is_zero_centred: bool,
    cos_TR: Tensor,
    sin_TR: Tensor,
) -> tuple[Tensor, Tensor]:
    """Queries and keys normed (if there are weights) and turned by their positions, in their first R of C."""
    return (
        _rotated(q_THC, q_weight_C, eps, is_zero_centred, cos_TR, sin_TR),
        _rotated(k_TJC, k_weight_C, eps, is_zero_centred, cos_TR, sin_TR),
    )


def delta_inputs(
    qkv: tuple[Tensor, Tensor, Tensor],
    b: Tensor,
    a: Tensor,
    conv_weight: Tensor,
    a_log_G: Tensor,
    dt_bias_G: Tensor,
    positions_T: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What the gated delta rule takes: q, k [T, J, K] of length one, v [T, G, V], log decay and beta [T, G].

    qkv: before the convolution, [T, J, K], [T, J, K], [T, J, G/J * V]; b, a: [T, G] or [T, J, G/J].
    conv_weight: [channels, 1, W], the channels those of q, then k, then v. It has no bias.
    """
    (num_rows, J, K), num_values = qkv[0].shape, qkv[2].shape[1:].numel()
    G = a_log_G.shape[0]
    weights = conv_weight.squeeze(1).split([J * K, J * K, num_values])
    q, k, v = (
        F.silu(_short_conv(x, weight.unflatten(0, x.shape[1:]), positions_T))
        for x, weight in zip(qkv, weights, strict=True)
    )
    dtype = qkv[0].dtype
    log_decay_TG = -_wide(a_log_G).exp() * F.softplus(_wide(a).reshape(num_rows, G) + _wide(dt_bias_G))
    return (
        _unit_length(q).to(dtype),
        _unit_length(k).to(dtype),
        v.to(dtype).reshape(num_rows, G, num_values // G),
        log_decay_TG,
        torch.sigmoid(_wide(b).reshape(num_rows, G)),
    )


@dataclass(frozen=True)
class Pieces:
    """The functions above, as they are or compiled."""

    rms_norm: Callable[..., Tensor]
    gated_norm: Callable[..., Tensor]
    swiglu: Callable[..., Tensor]
    output_gate: Callable[..., Tensor]
    rotated: Callable[..., tuple[Tensor, Tensor]]
    delta_inputs: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]
    is_compiled: bool


@cache
def pieces(*, is_compiled: bool) -> Pieces:
    """Compiled for the T that comes first, then once more for any T: training has one, evaluation has many.

    Which documents share the T rows changes no shape.
    """
    prepared = _compiled if is_compiled else _as_it_is
    return Pieces(
        rms_norm=prepared(rms_norm),
        gated_norm=prepared(gated_norm),
        swiglu=prepared(swiglu),
        output_gate=prepared(output_gate),
        rotated=prepared(rotated),
        delta_inputs=prepared(delta_inputs),
        is_compiled=is_compiled,
    )


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    kernel = torch.compile(function, fullgraph=True)

    @wraps(function)
    def call(*arguments: Any) -> Any:
        # Here, for torch keeps its settings by thread from 2.13 on.
        config: Any = torch._dynamo.config
        config.recompile_limit = max(config.recompile_limit, _MOST_VARIANTS)
        return kernel(*arguments)

    return call


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _short_conv(x: Tensor, weight: Tensor, positions_T: Tensor) -> Tensor:
    """Causal convolution along T, each channel by itself, that sees nothing before its document.

    x [T, ...], weight [..., W] -> wide [T, ...]: sum over w < W of weight[..., W-1-w] * x[t-w] where position(t) >= w.
    """
    width, num_rows = weight.shape[-1], x.shape[0]
    wide, weight = _wide(x), _wide(weight)
    padded = F.pad(wide, (0, 0) * (x.ndim - 1) + (width - 1, 0))
    positions = positions_T.reshape(-1, *[1] * (x.ndim - 1))
    total = wide * weight[..., width - 1]
    for back in range(1, width):
        earlier = padded[width - 1 - back : width - 1 - back + num_rows]
        total = total + torch.where(positions >= back, earlier, 0.0) * weight[..., width - 1 - back]
    return total


def _unit_length(wide: Tensor) -> Tensor:
    return wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + _L2_EPS)


def _rotated(
    x_THC: Tensor, weight_C: Tensor | None, eps: float, is_zero_centred: bool, cos_TR: Tensor, sin_TR: Tensor
) -> Tensor:
    wide = _wide(x_THC)
    if weight_C is not None:
        wide = rms_norm(wide, weight_C, eps, is_zero_centred)
    size = cos_TR.shape[-1]
    cos, sin = (_wide(table).unsqueeze(1).split(size // 2, dim=-1) for table in (cos_TR, sin_TR))
    first, second, rest = wide.split([size // 2, size // 2, wide.shape[-1] - size], dim=-1)
    turned = (first * cos[0] - second * sin[0], second * cos[1] + first * sin[1], rest)
    return torch.cat(turned, dim=-1).to(x_THC.dtype)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
