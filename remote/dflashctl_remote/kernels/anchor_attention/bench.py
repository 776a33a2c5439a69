"""Time of anchor attention, forward and backward, for one group of the drafter's step at its real shape."""

from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from dflashctl_remote.kernels.anchor_attention import flex
from dflashctl_remote.kernels.anchor_attention.check import random_tensors, with_gradients
from dflashctl_remote.kernels.anchor_attention.reference import dense
from dflashctl_remote.kernels.anchor_attention.visible import Visible, mask_mod
from dflashctl_remote.kernels.common.timing import Way, time_ways
from dflashctl_remote.spec.kernels import Bench

CONTEXT, DOCUMENT, BLOCKS, BLOCK = 8192, 2048, 256, 16
HEADS, KV_HEADS, SIZE = 32, 8, 128


def bench(device: torch.device) -> tuple[Bench, ...]:
    visible = _group(device)
    tensors = random_tensors(visible, HEADS, KV_HEADS, SIZE, device)
    mask = flex.block_mask(visible)
    ways = [
        Way("ours, mask given", "ours", lambda: _flex(tensors, mask)),
        Way("ours, mask made", "ours", lambda: _flex(tensors, flex.block_mask(visible))),
        Way("flex, mask from the grid", "other", lambda: _flex(tensors, _from_grid(visible, device))),
        Way("sdpa, dense mask", "other", lambda: _dense(tensors, dense(visible))),
    ]
    pairs = float((visible.anchors_N - visible.starts_N + BLOCK).sum()) * BLOCK
    tflop = 3.5 * 4 * pairs * HEADS * SIZE / 1e12
    shape = f"{BLOCKS} blocks of {BLOCK} over {CONTEXT} tokens, {HEADS} heads of {SIZE}, {tflop:.2f} TFLOP"
    return (Bench(kernel="anchor_attention", shape=shape, arms=time_ways(ways, device)),)


def _group(device: torch.device) -> Visible:
    """Half of the blocks of a row at r = 1: sorted anchors in the first half of its documents."""
    at = np.sort(np.random.default_rng(0).choice(CONTEXT // 2, BLOCKS, replace=False))
    starts = at - at % DOCUMENT
    return Visible(torch.from_numpy(starts).int().to(device), torch.from_numpy(at).int().to(device), CONTEXT, BLOCK)


def _flex(tensors: list[Tensor], mask: BlockMask) -> object:
    return with_gradients(partial(flex.anchor_attention, mask=mask), tensors)


def _from_grid(visible: Visible, device: torch.device) -> BlockMask:
    return create_block_mask(mask_mod(visible), None, None, visible.num_queries, visible.num_keys, device=str(device))


def _dense(tensors: list[Tensor], mask_QS: Tensor) -> object:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query[None], key[None], value[None], attn_mask=mask_QS, enable_gqa=True)[
            0
        ]

    return with_gradients(attend, tensors)
