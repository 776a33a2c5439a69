"""The drafter, whole: a Qwen3-shaped stack whose queries come from blocks and whose keys come from
target states and blocks.

Axes: T context tokens, N blocks, K block length, Q = N*K block tokens, D width (the target's), F = taps*D,
H heads, G key-value heads, C head size. Embedding and head are the target's and frozen; they are not here.
Source: the layout that the public `dflash` package 0.1.0 reads (facts of the format, not its code).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dflashctl_remote.spec.drafter import DrafterConfig


@dataclass(frozen=True)
class KeysValues:
    """Keys (normed and rotated) and values of the context for one layer: [G, T, C] each."""

    key_GTC: Tensor
    value_GTC: Tensor


Attend = Callable[[int, Tensor, KeysValues, KeysValues], Tensor]
"""(layer, query_HQC, context, block) -> mixed_HQC. Who sees whom is decided there: see masks.py."""


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

    def context_states(self, taps_TF: Tensor) -> Tensor:
        """hidden_norm(fc(concatenated taps)): [T, F] -> [T, D]. Computed once, the same for every layer."""
        return self.hidden_norm(self.fc(taps_TF))

    def context_keys_values(self, context_TD: Tensor, positions_T: Tensor) -> tuple[KeysValues, ...]:
        """Keys and values of the context for every layer; `positions_T` restart at 0 in each document."""
        rope = self._rope(positions_T, context_TD.dtype)
        return tuple(layer.self_attn.keys_values(context_TD, rope) for layer in self._stack)

    def forward(self, block_QD: Tensor, positions_Q: Tensor, context: Sequence[KeysValues], attend: Attend) -> Tensor:
        """Block embeddings to final normed states, [Q, D] -> [Q, D]; the target's head turns them into logits."""
        rope = self._rope(positions_Q, block_QD.dtype)
        hidden_QD = block_QD
        for index, layer in enumerate(self._stack):
            hidden_QD = layer(index, hidden_QD, rope, context[index], attend)
        return self.norm(hidden_QD)

    @property
    def _stack(self) -> list["DrafterLayer"]:
        return cast("list[DrafterLayer]", list(self.layers))

    def _rope(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
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
        hidden_QD: Tensor,
        rope: tuple[Tensor, Tensor],
        context: KeysValues,
        attend: Attend,
    ) -> Tensor:
        hidden_QD = hidden_QD + self.self_attn(index, self.input_layernorm(hidden_QD), rope, context, attend)
        return hidden_QD + self.mlp(self.post_attention_layernorm(hidden_QD))


class DrafterAttention(nn.Module):
    """Queries from the block alone; keys and values from [context ; block] with the same weights."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        width, size = config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(width, config.num_heads * size, bias=False)
        self.k_proj = nn.Linear(width, config.num_kv_heads * size, bias=False)
        self.v_proj = nn.Linear(width, config.num_kv_heads * size, bias=False)
        self.o_proj = nn.Linear(config.num_heads * size, width, bias=False)
        self.q_norm = nn.RMSNorm(size, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(size, eps=config.rms_norm_eps)

    def keys_values(self, states_TD: Tensor, rope: tuple[Tensor, Tensor]) -> KeysValues:
        key_GTC = self.k_norm(self._heads(self.k_proj(states_TD)))
        return KeysValues(rotate(key_GTC, rope), self._heads(self.v_proj(states_TD)))

    def forward(
        self,
        index: int,
        states_QD: Tensor,
        rope: tuple[Tensor, Tensor],
        context: KeysValues,
        attend: Attend,
    ) -> Tensor:
        query_HQC = rotate(self.q_norm(self._heads(self.q_proj(states_QD))), rope)
        mixed_HQC = attend(index, query_HQC, context, self.keys_values(states_QD, rope))
        return self.o_proj(mixed_HQC.transpose(0, 1).flatten(1))

    def _heads(self, projected: Tensor) -> Tensor:
        return projected.unflatten(-1, (-1, self.head_dim)).transpose(0, 1)


class DrafterMLP(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, states_QD: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(states_QD)) * self.up_proj(states_QD))


def rotate(states_HTC: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding over the whole head, halves swapped (the neox convention)."""
    cos_TC, sin_TC = rope
    first, second = states_HTC.chunk(2, dim=-1)
    return states_HTC * cos_TC + torch.cat((-second, first), dim=-1) * sin_TC
