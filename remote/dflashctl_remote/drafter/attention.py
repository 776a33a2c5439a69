"""Four ways to compute the same masked attention: eager (the reference), eager by document, flex, and our own kernel.

Each `*_attend` takes the layout of a packed row and gives the `Attend` that the drafter calls per layer.
Axes as in model.py and masks.py; attention scale is C**-0.5, key-value heads are shared by groups of heads.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask

from dflashctl_remote.drafter.masks import NO_DOCUMENT, Layout, dense_mask, visible
from dflashctl_remote.drafter.model import Attend, KeysValues
from dflashctl_remote.kernels.anchor_attention import triton_op
from dflashctl_remote.kernels.anchor_attention.flex import anchor_attention, block_mask
from dflashctl_remote.kernels.anchor_attention.ranges import Ranges, make_ranges, tuning_for
from dflashctl_remote.spec.drafter import DrafterConfig


def eager_attend(config: DrafterConfig, layout: Layout) -> Attend:
    """The reference: one dense grid of [Q, T + Q] for each kind of layer."""
    masks: dict[tuple[int | None, bool], Tensor] = {}

    def attend(layer: int, query_HQC: Tensor, context: KeysValues, block: KeysValues) -> Tensor:
        kind = (config.window_of(layer), config.is_layer_causal(layer))
        if kind not in masks:
            masks[kind] = dense_mask(layout, window=kind[0], is_causal=kind[1])
        return _attend_dense(query_HQC, _joined(context, block), masks[kind])

    return attend


def by_document_attend(config: DrafterConfig, layout: Layout) -> Attend:
    """The reference on one sub-grid a document: blocks never see another document, so nothing is lost.

    Needs documents that are contiguous in the row and anchors that are sorted, which packing guarantees.
    """
    parts = _split_by_document(layout)
    masks: dict[tuple[int | None, bool], list[Tensor]] = {}

    def attend(layer: int, query_HQC: Tensor, context: KeysValues, block: KeysValues) -> Tensor:
        kind = (config.window_of(layer), config.is_layer_causal(layer))
        if kind not in masks:
            masks[kind] = [dense_mask(part.layout, window=kind[0], is_causal=kind[1]) for part in parts]
        mixed = [
            _attend_dense(
                query_HQC[:, part.queries],
                _joined(_slice(context, part.context), _slice(block, part.queries)),
                mask,
            )
            for part, mask in zip(parts, masks[kind], strict=True)
        ]
        return torch.cat(mixed, dim=1)

    return attend


def flex_attend(config: DrafterConfig, layout: Layout) -> Attend:
    """flex_attention with block masks made of the same rule; compiled on a GPU, plain and dense on a CPU.

    Needs documents that are contiguous in the row; anchors may stand in any order, but sorted ones see fewer tiles.
    """
    masks: dict[tuple[int | None, bool], BlockMask] = {}

    def attend(layer: int, query_HQC: Tensor, context: KeysValues, block: KeysValues) -> Tensor:
        kind = (config.window_of(layer), config.is_layer_causal(layer))
        if kind not in masks:
            masks[kind] = block_mask(visible(layout, window=kind[0], is_causal=kind[1]))
        keys = _joined(context, block)
        return anchor_attention(query_HQC, keys.key_GTC, keys.value_GTC, masks[kind])

    return attend


def triton_attend(config: DrafterConfig, layout: Layout) -> Attend:
    """Our own kernels for layers without a window, flex for those with one; context and blocks are never joined.

    Needs what flex needs, and on a CPU Triton's interpreter. A layer raises ValueError for a shape that the kernels
    have no tile for.
    """
    ranges: dict[bool, Ranges] = {}
    flex = flex_attend(config, layout)

    def attend(layer: int, query_HQC: Tensor, context: KeysValues, block: KeysValues) -> Tensor:
        if config.window_of(layer) is not None:
            return flex(layer, query_HQC, context, block)
        is_causal = config.is_layer_causal(layer)
        if is_causal not in ranges:
            of_layer = visible(layout, window=None, is_causal=is_causal)
            heads_per_kv = query_HQC.shape[0] // block.key_GTC.shape[0]
            tuning = tuning_for(query_HQC.device, query_HQC.dtype)
            ranges[is_causal] = make_ranges(of_layer, heads_per_kv, tuning)
        return triton_op.anchor_attention(
            query_HQC, context.key_GTC, context.value_GTC, block.key_GTC, block.value_GTC, ranges[is_causal]
        )

    return attend


@dataclass(frozen=True)
class _Part:
    layout: Layout
    context: slice
    queries: slice


def _split_by_document(layout: Layout) -> list[_Part]:
    documents = layout.anchor_documents_N.tolist()
    starts = [i for i, document in enumerate(documents) if i == 0 or document != documents[i - 1]]
    parts = []
    for first, last in zip(starts, [*starts[1:], len(documents)], strict=True):
        if documents[first] == NO_DOCUMENT:
            context = slice(0, 0)
        else:
            inside = (layout.context_documents_T == documents[first]).nonzero().flatten()
            context = slice(int(inside[0]), int(inside[-1]) + 1)
        blocks = slice(first, last)
        part = Layout(
            context_positions_T=_or_one_stranger(layout.context_positions_T[context]),
            context_documents_T=_or_one_stranger(layout.context_documents_T[context]),
            anchor_indices_N=layout.anchor_indices_N[blocks] - context.start,
            anchor_positions_N=layout.anchor_positions_N[blocks],
            anchor_documents_N=layout.anchor_documents_N[blocks],
            block_size=layout.block_size,
        )
        # A padding part has no context; one token that nothing matches keeps the grid's index legal.
        context = context if context.stop > context.start else slice(0, 1)
        size = layout.block_size
        parts.append(_Part(part, context, slice(first * size, last * size)))
    return parts


def _or_one_stranger(values: Tensor) -> Tensor:
    return values if values.numel() else values.new_full((1,), -1)


def _attend_dense(query_HQC: Tensor, keys: KeysValues, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(
        query_HQC[None],
        keys.key_GTC[None],
        keys.value_GTC[None],
        attn_mask=mask,
        enable_gqa=query_HQC.shape[0] != keys.key_GTC.shape[0],
    )[0]


def _joined(context: KeysValues, block: KeysValues) -> KeysValues:
    return KeysValues(
        torch.cat((context.key_GTC, block.key_GTC), dim=1),
        torch.cat((context.value_GTC, block.value_GTC), dim=1),
    )


def _slice(values: KeysValues, part: slice) -> KeysValues:
    return KeysValues(values.key_GTC[:, part], values.value_GTC[:, part])
