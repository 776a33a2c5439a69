"""The drafter, whole: a Qwen3-shaped stack whose queries come from blocks and whose keys come from
target states and blocks.

Axes: T context tokens, N blocks, K block length, Q = N*K block tokens, D width (the target's), F = taps*D,
H heads, G key-value heads, C head size. Embedding and head are the target's and frozen; they are not here.
Source: the layout that the public `dflash` package 0.1.0 reads (facts of the format, not its code).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from dflashctl_remote.drafter.ops import PLAIN, Ops, Rope
from dflashctl_remote.spec.drafter import DrafterConfig


@dataclass(frozen=True)
class KeysValues:
    """Keys (normed and rotated) and values of the context for one layer: [G, T, C] each."""

    key_GTC: Tensor
    value_GTC: Tensor


Attend = Callable[[int, Tensor, KeysValues, KeysValues], Tensor]
"""(layer, query_HQC, context, block) -> mixed_HQC. Who sees whom is decided there: see masks.py."""


class FrozenEnds(Protocol):
    """What the drafter borrows of the target: its embedding and its head."""

    @property
    def head_VE(self) -> Tensor: ...

    def embed(self, ids: Tensor) -> Tensor: ...


class Saves(Protocol):
    """What a training step leaves out: trim.py, and there what each of these does."""

    @property
    def distinct_UD(self) -> Tensor: ...

    def spread(self, rows_UX: Tensor) -> Tensor: ...

    def scorable(self, rows_QX: Tensor) -> Tensor: ...


class Drafter(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size
        self.fc = nn.Linear(len(config.tap_layers) * width, width, bias=False)
        self.hidden_norm = nn.RMSNorm(width, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList(DrafterLayer(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(width, eps=config.rms_norm_eps)

    def init_weights(self, seed: int) -> None:
        """Normal weights of the config's initializer_range, norms at one; the same on every device."""
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            with torch.no_grad():
                if parameter.ndim > 1:
                    drawn = torch.empty(parameter.shape).normal_(
                        0.0, self.config.initializer_range, generator=generator
                    )
                    parameter.copy_(drawn)
                else:
                    parameter.fill_(1.0)

    def context_states(self, taps_TF: Tensor, ops: Ops = PLAIN) -> Tensor:
        """hidden_norm(fc(concatenated taps)): [T, F] -> [T, D]. Computed once, the same for every layer."""
        (context_TD,) = ops.project(taps_TF, self.fc.weight)
        return ops.norm(context_TD, self.hidden_norm.weight, self.config.rms_norm_eps)

    def context_keys_values(self, context_TD: Tensor, positions_T: Tensor, ops: Ops = PLAIN) -> tuple[KeysValues, ...]:
        """Keys and values of the context for every layer; `positions_T` restart at 0 in each document."""
        rope = self._rope(positions_T, context_TD.dtype)
        weights = [layer.self_attn.kv_weights for layer in self._stack]
        # All products at once: they share their input, and its gradient.
        projected = iter(ops.project(context_TD, *(weight for pair in weights for weight in pair)))
        return tuple(
            layer.self_attn.keys_values(key_TX, value_TX, rope, ops)
            for layer, key_TX, value_TX in zip(self._stack, projected, projected, strict=True)
        )

    def forward(
        self,
        block_QD: Tensor,
        positions_Q: Tensor,
        context: Sequence[KeysValues],
        attend: Attend,
        ops: Ops = PLAIN,
        saves: Saves | None = None,
    ) -> Tensor:
        """Block embeddings to final normed states, [Q, D] -> [Q, D]; the target's head turns them into logits.

        With `saves` only the states of slots from 1 on: [N*(K-1), D].
        """
        rope = self._rope(positions_Q, block_QD.dtype)
        stream_QD, update_QD = block_QD, None
        for index, layer in enumerate(self._stack):
            is_last = index == len(self._stack) - 1
            stream_QD, update_QD = layer(index, stream_QD, update_QD, rope, context[index], attend, ops, saves, is_last)
        return _added_and_normed(stream_QD, update_QD, self.norm, ops)[1]

    @property
    def _stack(self) -> list["DrafterLayer"]:
        return cast("list[DrafterLayer]", list(self.layers))

    def _rope(self, positions: Tensor, dtype: torch.dtype) -> Rope:
        size = self.config.head_dim
        exponents = torch.arange(0, size, 2, device=positions.device, dtype=torch.float32) / size
        frequencies = 1.0 / self.config.rope_theta**exponents
        angles = positions[:, None].float() * frequencies
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(dtype), angles.sin().to(dtype)


class DrafterLayer(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = DrafterAttention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = DrafterMLP(config)

    def forward(
        self,
        index: int,
        stream_QD: Tensor,
        update_QD: Tensor | None,
        rope: Rope,
        context: KeysValues,
        attend: Attend,
        ops: Ops,
        saves: Saves | None,
        is_last: bool,
    ) -> tuple[Tensor, Tensor]:
        """The residual stream and what the layer before adds to it, to the same of this layer.

        An addition waits for the norm that follows it: on a GPU both are one pass.
        """
        attention = self.self_attn
        if saves is not None and update_QD is None:
            _, states_UD = _added_and_normed(saves.distinct_UD, None, self.input_layernorm, ops)
            projected = tuple(saves.spread(rows_UX) for rows_UX in attention.projected(states_UD, ops))
        else:
            stream_QD, states_QD = _added_and_normed(stream_QD, update_QD, self.input_layernorm, ops)
            projected = attention.projected(states_QD, ops)
        mixed_QX = attention.mixed(index, projected, rope, context, attend, ops)
        if saves is not None and is_last:
            stream_QD, mixed_QX = saves.scorable(stream_QD), saves.scorable(mixed_QX)
        (mixed_QD,) = ops.project(mixed_QX, attention.o_proj.weight)
        stream_QD, states_QD = _added_and_normed(stream_QD, mixed_QD, self.post_attention_layernorm, ops)
        return stream_QD, self.mlp(states_QD, ops)


class DrafterAttention(nn.Module):
    """Queries from the block alone; keys and values from [context ; block] with the same weights."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.head_dim, self.eps = config.head_dim, config.rms_norm_eps
        width, size = config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(width, config.num_heads * size, bias=False)
        self.k_proj = nn.Linear(width, config.num_kv_heads * size, bias=False)
        self.v_proj = nn.Linear(width, config.num_kv_heads * size, bias=False)
        self.o_proj = nn.Linear(config.num_heads * size, width, bias=False)
        self.q_norm = nn.RMSNorm(size, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(size, eps=config.rms_norm_eps)

    @property
    def kv_weights(self) -> tuple[Tensor, Tensor]:
        return self.k_proj.weight, self.v_proj.weight

    def keys_values(self, key_TX: Tensor, value_TX: Tensor, rope: Rope, ops: Ops) -> KeysValues:
        """Of the projected states: keys normed and rotated, both by heads."""
        return KeysValues(
            ops.normed_rotated(key_TX, self.k_norm.weight, self.eps, rope),
            value_TX.unflatten(-1, (-1, self.head_dim)).transpose(0, 1),
        )

    def projected(self, states_QD: Tensor, ops: Ops) -> tuple[Tensor, ...]:
        """Queries, keys and values before norm and rotation."""
        return ops.project(states_QD, self.q_proj.weight, *self.kv_weights)

    def mixed(
        self,
        index: int,
        projected: tuple[Tensor, ...],
        rope: Rope,
        context: KeysValues,
        attend: Attend,
        ops: Ops,
    ) -> Tensor:
        """What attention gives for the projected block tokens, before o_proj: [Q, H*C]."""
        query_QX, key_QX, value_QX = projected
        query_HQC = ops.normed_rotated(query_QX, self.q_norm.weight, self.eps, rope)
        mixed_HQC = attend(index, query_HQC, context, self.keys_values(key_QX, value_QX, rope, ops))
        return mixed_HQC.transpose(0, 1).flatten(1)


class DrafterMLP(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, states_QD: Tensor, ops: Ops) -> Tensor:
        return ops.mlp(states_QD, self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight)


def _added_and_normed(stream_QD: Tensor, update_QD: Tensor | None, norm: nn.RMSNorm, ops: Ops) -> tuple[Tensor, Tensor]:
    weight_D, eps = norm.weight, cast("float", norm.eps)
    if update_QD is None:
        return stream_QD, ops.norm(stream_QD, weight_D, eps)
    return ops.add_norm(stream_QD, update_QD, weight_D, eps)
