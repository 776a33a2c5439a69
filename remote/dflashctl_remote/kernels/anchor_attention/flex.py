"""Anchor attention by flex_attention: a block mask made of index ranges, one compiled kernel for each kind of layer."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from dflashctl_remote.kernels.anchor_attention.visible import TILE, Visible, mask_mod, visible_tiles
from dflashctl_remote.kernels.compiled import compiled


def block_mask(visible: Visible) -> BlockMask:
    """The tiles of the rule; no [Q, S] grid is built and the host does not wait for the device."""
    partial_IJ, full_IJ = visible_tiles(visible)
    num_partial_I, partial_indices_IJ = _in_order(partial_IJ)
    num_full_I, full_indices_IJ = _in_order(full_IJ)
    return BlockMask.from_kv_blocks(
        num_partial_I[None, None],
        partial_indices_IJ[None, None],
        num_full_I[None, None],
        full_indices_IJ[None, None],
        BLOCK_SIZE=TILE,
        mask_mod=mask_mod(visible),
        seq_lengths=(visible.num_queries, visible.num_keys),
    )


def anchor_attention(query_HQC: Tensor, key_GSC: Tensor, value_GSC: Tensor, mask: BlockMask) -> Tensor:
    """As reference.anchor_attention; on a GPU compiled for these shapes, on a CPU plain and dense.

    Raises torch's FailOnRecompileLimitHit if a process uses too many shapes: the kernel without compilation would
    hold all scores.
    """
    kernel: Any = compiled(flex_attention) if query_HQC.is_cuda else flex_attention
    # AUTO would take the decoding kernel for short rows of queries.
    options = {"BACKEND": "TRITON"} if query_HQC.is_cuda else None
    mixed_1HQC: Tensor = kernel(
        query_HQC[None],
        key_GSC[None],
        value_GSC[None],
        block_mask=mask,
        enable_gqa=query_HQC.shape[0] != key_GSC.shape[0],
        kernel_options=options,
    )
    return mixed_1HQC[0]


def _in_order(is_there_IJ: Tensor) -> tuple[Tensor, Tensor]:
    """How many tiles each row has, and their indices first in each row: int32 [I] and [I, J]."""
    indices_IJ = torch.argsort(is_there_IJ.int(), dim=-1, descending=True, stable=True)
    return is_there_IJ.sum(dim=-1, dtype=torch.int32), indices_IJ.int()
