"""Make transformers' torch paths for Gated DeltaNet fit for training under autocast.

fla 0.6.0 refuses its backward kernel on Hopper with Triton 3.4 to 3.7.0, and short rows of a small
model are quick enough in plain torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F
from transformers.models.qwen3_5 import modeling_qwen3_5


def use_torch_kernels() -> None:
    """Run the delta rule in fp32 outside autocast, and the convolution as shifted products."""
    chunk_rule = modeling_qwen3_5.torch_chunk_gated_delta_rule

    def chunk_rule_in_fp32(query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(query.device.type, enabled=False):
            return chunk_rule(query, *args, **kwargs)

    modeling_qwen3_5.torch_chunk_gated_delta_rule = chunk_rule_in_fp32
    modeling_qwen3_5.causal_conv1d_fn = shifted_convolution


def shifted_convolution(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Depthwise causal convolution of [B, C, T] with [C, W] and silu; grouped conv1d is slow to train."""
    assert bias is None and activation == "silu"
    length, width = hidden_states.shape[-1], weight.shape[-1]
    padded = F.pad(hidden_states, (width - 1, 0))
    weight = weight.to(hidden_states.dtype)
    taps = [padded[..., w : w + length] * weight[:, w, None] for w in range(width)]
    return F.silu(torch.stack(taps).sum(0))
