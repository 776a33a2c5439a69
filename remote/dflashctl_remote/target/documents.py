"""Where the documents of a packed row stand, and causal attention inside each of them.

Axes: T rows of tokens, H query heads, J key-value heads, C head size, N documents.
"""

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_VARLEN_DTYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Documents:
    """Documents one after the other; together they cover all T rows, so padding is a document of its own.

    Made anew for every row: fla keeps tables by the identity of `bounds`, and would take stale ones from a tensor
    that is written again (fla issue 1274).
    """

    lengths: tuple[int, ...]
    positions_T: Tensor
    """From 0 in each document."""
    bounds: Tensor
    """int32 of N+1, on the device: where each document starts, and T."""
    bounds_cpu: Tensor
    """int64: the same without asking the device."""

    @classmethod
    def of(cls, lengths: Sequence[int], num_rows: int, device: torch.device) -> "Documents":
        """What is left of `num_rows` after the documents is padding."""
        num_padding = num_rows - sum(lengths)
        assert num_padding >= 0, f"documents of {sum(lengths)} tokens do not fit {num_rows} rows"
        lengths = (*lengths, num_padding) if num_padding else tuple(lengths)
        positions_T = torch.cat([torch.arange(length) for length in lengths])
        bounds_cpu = torch.tensor([0, *lengths]).cumsum(0)
        return cls(lengths, positions_T.to(device), bounds_cpu.to(device, torch.int32), bounds_cpu)


def document_attention(q_THC: Tensor, k_TJC: Tensor, v_TJC: Tensor, documents: Documents, *, scale: float) -> Tensor:
    """Causal attention of each token to its own document: [T, H, C].

    On a GPU in 16 bit one varlen kernel over all documents, else scaled_dot_product_attention document by document.
    """
    if q_THC.is_cuda and q_THC.dtype in _VARLEN_DTYPES:
        return _varlen_attention(q_THC, k_TJC, v_TJC, documents, scale)
    mixed = [
        F.scaled_dot_product_attention(
            q_LHC.transpose(0, 1)[None],
            k_LJC.transpose(0, 1)[None],
            v_LJC.transpose(0, 1)[None],
            is_causal=True,
            scale=scale,
            enable_gqa=q_THC.shape[1] != k_TJC.shape[1],
        )[0].transpose(0, 1)
        for q_LHC, k_LJC, v_LJC in zip(*(x.split(documents.lengths) for x in (q_THC, k_TJC, v_TJC)), strict=True)
    ]
    return torch.cat(mixed)


def _varlen_attention(q_THC: Tensor, k_TJC: Tensor, v_TJC: Tensor, documents: Documents, scale: float) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    longest, bounds = max(documents.lengths), documents.bounds
    out: Any = varlen_attn(
        q_THC, k_TJC, v_TJC, bounds, bounds, longest, longest, **_varlen_arguments(scale, q_THC.shape[-1])
    )
    return out


@cache
def _varlen_arguments(scale: float, head_size: int) -> dict[str, Any]:
    """Causal attention with fewer key-value heads, in the words of this torch: 2.10, 2.11 and 2.13 differ."""
    from torch.nn.attention.varlen import varlen_attn

    names = inspect.signature(varlen_attn).parameters
    arguments: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in names else {"is_causal": True}
    if "enable_gqa" in names:
        arguments["enable_gqa"] = True
    if "scale" in names:
        arguments["scale"] = scale
    else:
        assert math.isclose(scale, head_size**-0.5), "varlen_attn of this torch has a fixed scale"
    return arguments
