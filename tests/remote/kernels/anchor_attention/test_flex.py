"""flex_attention against the reference: on a CPU plain, on a GPU compiled, values and all gradients."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from dflashctl_remote.kernels.anchor_attention import flex, reference
from dflashctl_remote.kernels.anchor_attention.visible import Visible

KINDS = {
    "full": (None, False),
    "causal": (None, True),
    "window": (70, False),
    "causal-window": (150, True),
}


def problem(kind: str, num_blocks: int, block_size: int, num_context: int, device: str = "cpu") -> Visible:
    """Two documents, the second from a third on; the last block is padding."""
    generator = torch.Generator().manual_seed(num_blocks)
    anchors = torch.randint(0, num_context, (num_blocks,), generator=generator).sort().values
    starts = torch.where(anchors >= num_context // 3, num_context // 3, 0)
    anchors[-1] = starts[-1] = 0
    window, is_causal = KINDS[kind]
    return Visible(starts.int().to(device), anchors.int().to(device), num_context, block_size, window, is_causal)


def drawn(visible: Visible, heads: int, kv_heads: int, size: int) -> list[Tensor]:
    """Query, key, value and the gradient that comes back, fp64."""
    generator = torch.Generator().manual_seed(3)
    rows = (visible.num_queries, visible.num_keys, visible.num_keys, visible.num_queries)
    return [
        torch.randn(number, length, size, generator=generator, dtype=torch.float64)
        for number, length in zip((heads, kv_heads, kv_heads, heads), rows, strict=True)
    ]


def with_gradients(attend: object, tensors: list[Tensor]) -> list[Tensor]:
    query, key, value, back = (tensor.detach().clone().requires_grad_() for tensor in tensors)
    mixed = attend(query, key, value)  # type: ignore[operator]
    return [mixed.detach(), *torch.autograd.grad(mixed, (query, key, value), back.detach())]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("kind", KINDS)
def test_plain_flex_gives_the_reference(kind: str) -> None:
    visible = problem(kind, 7, 5, 61)
    tensors = drawn(visible, 4, 2, 16)
    mask = flex.block_mask(visible)
    with torch.no_grad():
        got = flex.anchor_attention(*tensors[:3], mask)
    torch.testing.assert_close(got, reference.anchor_attention(*tensors[:3], visible))


def test_the_reference_is_attention_over_the_visible_keys_alone() -> None:
    """Worked by hand for one block of one slot: mean of the values of equal keys."""
    starts, anchors = torch.tensor([1], dtype=torch.int32), torch.tensor([3], dtype=torch.int32)
    visible = Visible(starts, anchors, num_context=4, block_size=1)
    value = torch.tensor([[[100.0], [1.0], [2.0], [100.0], [6.0]]])
    mixed = reference.anchor_attention(torch.ones(1, 1, 1), torch.zeros(1, 5, 1), value, visible)
    assert mixed.flatten().tolist() == pytest.approx([3.0])


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("shape", [(64, 16, 1024), (61, 16, 900), (40, 10, 777)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_flex_in_bf16_gives_the_reference_and_its_gradients(
    kind: str, shape: tuple[int, int, int], fresh_dynamo: None
) -> None:
    tensors = [tensor.bfloat16() for tensor in drawn(problem(kind, *shape), 8, 2, 128)]
    exact_visible, visible = problem(kind, *shape), problem(kind, *shape, device="cuda")
    exact = with_gradients(
        lambda *args: reference.anchor_attention(*args, exact_visible), [tensor.double() for tensor in tensors]
    )
    mask = flex.block_mask(visible)
    got = with_gradients(lambda *args: flex.anchor_attention(*args, mask), [tensor.cuda() for tensor in tensors])
    for name, one, other in zip(("mixed", "query", "key", "value"), got, exact, strict=True):
        assert not one.isnan().any(), name
        assert (one.double().cpu() - other).norm() <= 1e-2 * other.norm(), name
