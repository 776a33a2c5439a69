"""Time of anchor attention, forward and backward, for one group of the drafter's step at its real shape.

Each way starts from what the drafter has, context and blocks apart and by tokens outside, and ends at the gradients of
both: putting them side by side is part of those ways that need it.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from dflashctl_remote.kernels.anchor_attention import flex, triton_op
from dflashctl_remote.kernels.anchor_attention.check import random_tensors
from dflashctl_remote.kernels.anchor_attention.ranges import Ranges, make_ranges, tuning_for
from dflashctl_remote.kernels.anchor_attention.reference import dense
from dflashctl_remote.kernels.anchor_attention.visible import Visible, mask_mod
from dflashctl_remote.kernels.common.timing import Way, time_ways
from dflashctl_remote.spec.kernels import Bench

CONTEXT, DOCUMENT, BLOCKS, BLOCK = 8192, 2048, 256, 16
HEADS, KV_HEADS, SIZE = 32, 8, 128


def bench(device: torch.device) -> tuple[Bench, ...]:
    visible = group(device)
    tensors = apart(visible, device)
    mask, ranges = flex.block_mask(visible), _ranges(visible)
    ways = [
        Way("triton, ranges given", "ours", lambda: run_triton(tensors, ranges)),
        Way("triton, ranges made", "ours", lambda: run_triton(tensors, _ranges(visible))),
        Way("flex, mask given", "ours", lambda: _flex(tensors, mask)),
        Way("flex, mask made", "ours", lambda: _flex(tensors, flex.block_mask(visible))),
        Way("flex, mask from the grid", "other", lambda: _flex(tensors, _from_grid(visible, device))),
        Way("sdpa, dense mask", "other", lambda: _dense(tensors, dense(visible))),
    ]
    shape = (
        f"{BLOCKS} blocks of {BLOCK} over {CONTEXT} tokens, {HEADS} heads of {SIZE}, {3.5 * tflop(visible):.2f} TFLOP"
    )
    return (Bench(kernel="anchor_attention", shape=shape, arms=time_ways(ways, device)),)


def tflop(visible: Visible) -> float:
    """Of the two products of the forward pass, over visible pairs alone; five such products come back."""
    pairs = float((visible.anchors_N - visible.starts_N + BLOCK).sum()) * BLOCK
    return 4 * pairs * HEADS * SIZE / 1e12


def group(device: torch.device) -> Visible:
    """Half of the blocks of a row at r = 1: sorted anchors in the first half of its documents."""
    at = np.sort(np.random.default_rng(0).choice(CONTEXT // 2, BLOCKS, replace=False))
    starts = at - at % DOCUMENT
    return Visible(torch.from_numpy(starts).int().to(device), torch.from_numpy(at).int().to(device), CONTEXT, BLOCK)


def apart(visible: Visible, device: torch.device) -> list[Tensor]:
    """Query, key and value of the context, key and value of the blocks, and what comes back; as views of [R, H, C]."""
    query, key, value, back = random_tensors(visible, HEADS, KV_HEADS, SIZE, device)
    parts = (query, key[:, :CONTEXT], value[:, :CONTEXT], key[:, CONTEXT:], value[:, CONTEXT:], back)
    return [part.transpose(0, 1).contiguous().transpose(0, 1) for part in parts]


def _ranges(visible: Visible) -> Ranges:
    return make_ranges(visible, HEADS // KV_HEADS, tuning_for(visible.anchors_N.device, torch.bfloat16))


def run_triton(tensors: list[Tensor], ranges: Ranges) -> object:
    return _with_gradients(partial(triton_op.anchor_attention, ranges=ranges), tensors)


def _with_gradients(attend: Callable[..., Tensor], tensors: list[Tensor]) -> object:
    inputs = [tensor.detach().requires_grad_() for tensor in tensors[:5]]
    return torch.autograd.grad(attend(*inputs), inputs, tensors[5])


def _joined(attend: Callable[[Tensor, Tensor, Tensor], Tensor], tensors: list[Tensor]) -> object:
    def joined(query: Tensor, key: Tensor, value: Tensor, own_key: Tensor, own_value: Tensor) -> Tensor:
        return attend(query, torch.cat((key, own_key), dim=1), torch.cat((value, own_value), dim=1))

    return _with_gradients(joined, tensors)


def _flex(tensors: list[Tensor], mask: BlockMask) -> object:
    return _joined(partial(flex.anchor_attention, mask=mask), tensors)


def _from_grid(visible: Visible, device: torch.device) -> BlockMask:
    return create_block_mask(mask_mod(visible), None, None, visible.num_queries, visible.num_keys, device=str(device))


def _dense(tensors: list[Tensor], mask_QS: Tensor) -> object:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query[None], key[None], value[None], attn_mask=mask_QS, enable_gqa=True)[
            0
        ]

    return _joined(attend, tensors)
