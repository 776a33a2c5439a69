"""flex_attention against the reference: on a CPU plain, on a GPU compiled, values and all gradients."""

from collections.abc import Iterator
from functools import partial

import pytest
import torch

from dflashctl_remote.kernels.anchor_attention import flex, reference
from dflashctl_remote.kernels.anchor_attention.check import (
    KINDS,
    check,
    random_tensors,
    random_visible,
    with_gradients,
)
from dflashctl_remote.kernels.anchor_attention.visible import Visible

CPU = torch.device("cpu")


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("kind", KINDS)
def test_plain_flex_gives_the_reference(kind: str) -> None:
    visible = random_visible(kind, 7, 5, 61, CPU)
    tensors = [tensor.double() for tensor in random_tensors(visible, 4, 2, 16, CPU)]
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


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_the_checks_of_the_command_pass() -> None:
    assert {found.state for found in check(CPU)} == {"passed"}


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
    cuda = torch.device("cuda")
    exact_visible, visible = random_visible(kind, *shape, CPU), random_visible(kind, *shape, cuda)
    exact = with_gradients(
        partial(reference.anchor_attention, visible=exact_visible),
        [tensor.double() for tensor in random_tensors(exact_visible, 8, 2, 128, CPU)],
    )
    mask = flex.block_mask(visible)
    got = with_gradients(partial(flex.anchor_attention, mask=mask), random_tensors(visible, 8, 2, 128, cuda))
    for name, one, other in zip(("mixed", "query", "key", "value"), got, exact, strict=True):
        assert not one.isnan().any(), name
        assert (one.double().cpu() - other).norm() <= 1e-2 * other.norm(), name
