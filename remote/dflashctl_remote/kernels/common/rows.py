"""How a pass over rows of logits is run: by which code, in which pieces, on which GPU."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Backend = Literal["auto", "torch", "triton"]
"""auto: Triton on a GPU for bf16 and fp32, torch for everything else (fp16 has no room for small probabilities)."""


@dataclass(frozen=True)
class RowTuning:
    """Constants of the row kernels; fixed, so that nothing is tuned at run time by several threads at once."""

    block: int = 16384
    """Columns of a tile; the whole vocabulary in one tile spills registers. These are the fastest of 12 on an H200."""
    num_warps: int = 32
    num_stages: int = 1
    """Tiles in flight; 1: no software pipeline."""


def uses_triton(backend: Backend, head_VE: Tensor) -> bool:
    if backend == "auto":
        return head_VE.is_cuda and head_VE.dtype in (torch.bfloat16, torch.float32)
    return backend == "triton"


def on_device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """Triton launches on the current GPU, which need not be the tensor's."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def linear_logits(states_RD: Tensor, head_VE: Tensor) -> Tensor:
    """fp32 logits of all rows at once: [R, V].

    On a GPU straight from the accumulators, since bf16 logits near 20 tie in steps of 0.125.
    """
    states_RD = states_RD.to(head_VE.dtype)
    if states_RD.is_cuda and head_VE.dtype != torch.float32:
        return torch.mm(states_RD, head_VE.T, out_dtype=torch.float32)
    return (states_RD @ head_VE.T).float()


def next_power_of_2(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()
