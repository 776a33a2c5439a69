"""Small checks of anchor attention against fp64, on the device that it is to run on.

Axes as in reference.py.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dflashctl_remote.kernels.anchor_attention import flex, reference, triton_op
from dflashctl_remote.kernels.anchor_attention.ranges import make_ranges, tuning_for
from dflashctl_remote.kernels.anchor_attention.visible import Visible
from dflashctl_remote.kernels.common.checking import Checks, missing_for_triton, relative_error
from dflashctl_remote.spec.kernels import Check

KINDS = {"full": (None, False), "causal": (None, True), "window": (70, False), "causal window": (150, True)}
LIMIT = 1e-2
"""Of norms, bf16 against fp64."""


def check(device: torch.device) -> tuple[Check, ...]:
    """On a CPU values alone, by the plain and dense form: flex_attention has no backward pass there."""
    checks = Checks("anchor_attention")
    for name in KINDS:
        for num_blocks, block_size, num_context in ((64, 16, 1024), (40, 10, 777)):
            claim = f"{name}, {num_blocks} blocks of {block_size} over {num_context} tokens"
            visible = random_visible(name, num_blocks, block_size, num_context, device)
            if device.type == "cuda":
                _compare_with_gradients(checks, claim, visible, device)
            else:
                _compare_values(checks, claim, visible)
    _check_triton(checks, device)
    return tuple(checks.found)


def _check_triton(checks: Checks, device: torch.device) -> None:
    """Its whole shape on a GPU; in the interpreter a small one in fp32, since that cannot multiply bf16."""
    missing = missing_for_triton(device)
    is_cuda = device.type == "cuda"
    shapes = ((64, 16, 1024), (40, 10, 777)) if is_cuda else ((5, 16, 61),)
    for kind in ("full", "causal"):
        for num_blocks, block_size, num_context in shapes:
            claim = f"triton, {kind}, {num_blocks} blocks of {block_size} over {num_context} tokens"
            if missing:
                checks.skip(claim, missing)
                continue
            visible = random_visible(kind, num_blocks, block_size, num_context, device)
            tensors = random_tensors(visible, 8, 2, 128 if is_cuda else 16, device)
            if not is_cuda:
                tensors = [tensor.float() for tensor in tensors]
            ranges = make_ranges(visible, 4, tuning_for(device, tensors[0].dtype))
            attend = partial(split(triton_op.anchor_attention), num_context=num_context, ranges=ranges)
            _compare(checks, claim, visible, tensors, with_gradients(attend, tensors), LIMIT if is_cuda else 1e-5)


def random_visible(kind: str, num_blocks: int, block_size: int, num_context: int, device: torch.device) -> Visible:
    """Sorted anchors in two documents, the second from a third of the context on; the last block is padding."""
    generator = torch.Generator().manual_seed(num_blocks)
    anchors = torch.randint(0, num_context, (num_blocks,), generator=generator).sort().values
    starts = torch.where(anchors >= num_context // 3, num_context // 3, 0)
    anchors[-1] = starts[-1] = 0
    window, is_causal = KINDS[kind]
    return Visible(starts.int().to(device), anchors.int().to(device), num_context, block_size, window, is_causal)


def random_tensors(visible: Visible, heads: int, kv_heads: int, size: int, device: torch.device) -> list[Tensor]:
    """Query, key, value and the gradient that comes back: bf16, the same on every device."""
    generator = torch.Generator().manual_seed(3)
    lengths = (visible.num_queries, visible.num_keys, visible.num_keys, visible.num_queries)
    return [
        torch.randn(number, length, size, generator=generator).bfloat16().to(device)
        for number, length in zip((heads, kv_heads, kv_heads, heads), lengths, strict=True)
    ]


def with_gradients(attend: Callable[[Tensor, Tensor, Tensor], Tensor], tensors: list[Tensor]) -> list[Tensor]:
    """Values, then the gradients of query, key and value for tensors[3] coming back."""
    query, key, value = (tensor.detach().clone().requires_grad_() for tensor in tensors[:3])
    mixed = attend(query, key, value)
    return [mixed.detach(), *torch.autograd.grad(mixed, (query, key, value), tensors[3])]


def split(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """From a form that takes context and blocks apart to one that takes them joined, as flex and the reference do."""

    def joined(query: Tensor, key: Tensor, value: Tensor, *, num_context: int, **named: Any) -> Tensor:
        return attend(
            query, key[:, :num_context], value[:, :num_context], key[:, num_context:], value[:, num_context:], **named
        )

    return joined


def _compare_with_gradients(checks: Checks, claim: str, visible: Visible, device: torch.device) -> None:
    tensors = random_tensors(visible, 8, 2, 128, device)
    mask = flex.block_mask(visible)
    found = with_gradients(partial(flex.anchor_attention, mask=mask), tensors)
    _compare(checks, claim, visible, tensors, found, LIMIT)


def _compare(
    checks: Checks, claim: str, visible: Visible, tensors: list[Tensor], found: list[Tensor], limit: float
) -> None:
    exact = with_gradients(
        partial(reference.anchor_attention, visible=visible), [tensor.double() for tensor in tensors]
    )
    for name, one, other in zip(("values", "dq", "dk", "dv"), found, exact, strict=True):
        checks.at_most(f"{claim}: {name}", relative_error(one, other), limit)


@torch.no_grad()
def _compare_values(checks: Checks, claim: str, visible: Visible) -> None:
    query, key, value, _ = (tensor.float() for tensor in random_tensors(visible, 4, 2, 16, torch.device("cpu")))
    found = flex.anchor_attention(query, key, value, flex.block_mask(visible))
    exact = reference.anchor_attention(query.double(), key.double(), value.double(), visible)
    checks.at_most(f"{claim}: values", relative_error(found, exact), 1e-5)
