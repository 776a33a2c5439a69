"""Anchor attention by our own Triton kernels: context and blocks are read where they are, never put side by side.

For layers without a window; README.md says what is gained over flex_attention. Axes as in visible.py; H heads, G
key-value heads, C head size.
"""

from math import log
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dflashctl_remote.kernels.anchor_attention.ranges import MOST_ROWS, Ranges, is_supported
from dflashctl_remote.kernels.common.rows import on_device_of

LOG2_E = 1 / log(2)


def anchor_attention(
    query_HQC: Tensor,
    context_key_GTC: Tensor,
    context_value_GTC: Tensor,
    block_key_GQC: Tensor,
    block_value_GQC: Tensor,
    ranges: Ranges,
) -> Tensor:
    """As reference.anchor_attention over [context ; blocks]: [H, Q, C], a view of [Q, H, C].

    Differentiable in all five tensors, the same in every run; bf16, fp16 or fp32, with any strides but the last axis's.
    Raises ValueError for a shape that `is_supported` refuses. Nothing here waits for the device.
    """
    heads_per_kv = query_HQC.shape[0] // context_key_GTC.shape[0]
    if not is_supported(ranges.visible, heads_per_kv, query_HQC.shape[-1]):
        raise ValueError(
            f"the Triton attention needs layers without a window, at most {MOST_ROWS} slots times heads of a key-value "
            f"head and heads of 16 to 128, and this layer has a window of {ranges.visible.window}, blocks of "
            f"{ranges.visible.block_size}, {heads_per_kv} heads a key-value head and heads of {query_HQC.shape[-1]}: "
            "take flex"
        )
    tensors = (query_HQC, context_key_GTC, context_value_GTC, block_key_GQC, block_value_GQC)
    mixed: Tensor = _AnchorAttention.apply(*(_with_rows(tensor) for tensor in tensors), ranges)
    return mixed


class _AnchorAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, own_key: Tensor, own_value: Tensor, ranges: Ranges
    ) -> Tensor:
        from dflashctl_remote.kernels.anchor_attention.forward import forward_kernel

        visible, tuning = ranges.visible, ranges.tuning.forward
        mixed = _empty_by_rows(query)
        num_blocks, groups = visible.anchors_N.shape[0], key.shape[0]
        lse = query.new_empty(groups, num_blocks, ranges.heads * ranges.slots, dtype=torch.float32)
        launch: Any = forward_kernel[(groups, ranges.forward.order_I.shape[0])]
        with on_device_of(query):
            launch(
                query,
                key,
                value,
                own_key,
                own_value,
                mixed,
                lse,
                visible.starts_N,
                visible.anchors_N,
                ranges.forward.order_I,
                *_strides(query, key, value, own_key, own_value, mixed),
                num_blocks,
                _scale(query) * LOG2_E,
                **_constants(query, key, ranges),
                BLOCKS=ranges.forward.blocks,
                KEYS=tuning.keys,
                IS_CAUSAL=visible.is_causal,
                num_warps=tuning.num_warps,
                num_stages=tuning.num_stages,
            )
        ctx.save_for_backward(query, key, value, own_key, own_value, mixed, lse)
        ctx.ranges = ranges
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, back: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, own_key, own_value, mixed, lse = ctx.saved_tensors
        back, delta = _with_rows(back), torch.empty_like(lse)
        own = query_backward(ctx.ranges, query, key, value, own_key, own_value, mixed, back, lse, delta)
        context: tuple[Tensor | None, Tensor | None] = (None, None)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            context = context_backward(ctx.ranges, query, key, value, back, lse, delta)
        return own[0], *context, own[1], own[2], None


def query_backward(
    ranges: Ranges,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    own_key: Tensor,
    own_value: Tensor,
    mixed: Tensor,
    back: Tensor,
    lse: Tensor,
    delta: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries and of the blocks' keys and values; writes delta, which the context's gradients need."""
    from dflashctl_remote.kernels.anchor_attention.backward import query_kernel

    visible, tuning = ranges.visible, ranges.tuning.queries
    query_grad, own_key_grad, own_value_grad = (_empty_by_rows(one) for one in (query, own_key, own_value))
    launch: Any = query_kernel[(key.shape[0], ranges.queries.order_I.shape[0])]
    with on_device_of(query):
        launch(
            query,
            key,
            value,
            own_key,
            own_value,
            mixed,
            back,
            lse,
            delta,
            query_grad,
            own_key_grad,
            own_value_grad,
            visible.starts_N,
            visible.anchors_N,
            ranges.queries.order_I,
            *_strides(query, key, value, own_key, own_value, mixed, back, query_grad, own_key_grad),
            visible.anchors_N.shape[0],
            _scale(query),
            _scale(query) * LOG2_E,
            **_constants(query, key, ranges),
            BLOCKS=ranges.queries.blocks,
            KEYS=tuning.keys,
            IS_CAUSAL=visible.is_causal,
            num_warps=tuning.num_warps,
            num_stages=tuning.num_stages,
        )
    return query_grad, own_key_grad, own_value_grad


def context_backward(
    ranges: Ranges, query: Tensor, key: Tensor, value: Tensor, back: Tensor, lse: Tensor, delta: Tensor
) -> tuple[Tensor, Tensor]:
    from dflashctl_remote.kernels.anchor_attention.backward import context_kernel

    visible, tuning = ranges.visible, ranges.tuning.context
    key_grad, value_grad = _empty_by_rows(key), _empty_by_rows(value)
    launch: Any = context_kernel[(key.shape[0], ranges.order_J.shape[0])]
    with on_device_of(query):
        launch(
            query,
            key,
            value,
            back,
            lse,
            delta,
            key_grad,
            value_grad,
            visible.starts_N,
            visible.anchors_N,
            ranges.first_J,
            ranges.full_J,
            ranges.last_J,
            ranges.order_J,
            *_strides(query, key, value, back, key_grad),
            visible.num_context,
            visible.anchors_N.shape[0],
            _scale(query),
            _scale(query) * LOG2_E,
            **_constants(query, key, ranges),
            KEYS=tuning.keys,
            num_warps=tuning.num_warps,
            num_stages=tuning.num_stages,
        )
    return key_grad, value_grad


def _constants(query: Tensor, key: Tensor, ranges: Ranges) -> dict[str, Any]:
    return {
        "HEADS": query.shape[0] // key.shape[0],
        "HEADS_P": ranges.heads,
        "SLOTS": ranges.visible.block_size,
        "SLOTS_P": ranges.slots,
        "SIZE": query.shape[-1],
        # Of bf16 there is one way to multiply.
        "PRECISION": "ieee" if query.dtype == torch.float32 else "tf32",
    }


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    """(head, row) of each; offsets of keys are 32 bits wide."""
    assert all(tensor.shape[1] * tensor.stride(1) < 2**31 for tensor in tensors), "a tensor is too large"
    return tuple(stride for tensor in tensors for stride in tensor.stride()[:2])


def _scale(query_HQC: Tensor) -> float:
    return float(query_HQC.shape[-1]) ** -0.5


def _with_rows(tensor: Tensor) -> Tensor:
    """Last axis contiguous: what a kernel reads in one piece."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _empty_by_rows(like_HRC: Tensor) -> Tensor:
    """[H, R, C] as a view of [R, H, C]: as products want them, and as they made the keys and values."""
    heads, rows, size = like_HRC.shape
    return like_HRC.new_empty(rows, heads, size).transpose(0, 1)
