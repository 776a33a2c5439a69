from collections.abc import Callable
from typing import Any

import pytest
import torch

from dflashctl_remote.data.pack import PackedRow
from dflashctl_remote.drafter.anchors import Anchors, sample_anchors
from dflashctl_remote.drafter.attention import by_document_attend, eager_attend, flex_attend, triton_attend
from dflashctl_remote.drafter.masks import Layout
from dflashctl_remote.drafter.model import Attend, Drafter
from dflashctl_remote.drafter.objective import row_layout
from dflashctl_remote.spec.drafter import DrafterConfig

CPU = torch.device("cpu")
KINDS = {
    "full": {},
    "causal": {"is_causal": True},
    "mixed": {"layer_types": ("sliding_attention", "full_attention"), "sliding_window": 6},
    "sliding-bidirectional": {
        "layer_types": ("sliding_attention", "sliding_attention"),
        "sliding_window": 3,
        "is_causal": False,
    },
}


@pytest.fixture(params=KINDS)
def config(request: pytest.FixtureRequest, make_config: Callable[..., DrafterConfig]) -> DrafterConfig:
    return make_config(**KINDS[request.param])


@pytest.fixture
def row(make_row: Callable[..., PackedRow]) -> PackedRow:
    return make_row((23, 9, 17), total=56)


@pytest.fixture
def anchors(row: PackedRow) -> Anchors:
    return sample_anchors(row, num_anchors=45, seed=4, batch=9)


def run(drafter: Drafter, layout: Layout, attend: Attend) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Outputs, and the gradients of every parameter for one fixed scalar of them, both on the CPU in fp64."""
    generator = torch.Generator().manual_seed(1)
    width, like = drafter.config.hidden_size, drafter.fc.weight

    def drawn(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator).to(like)

    taps = drawn(layout.num_context, 2 * width)
    block, readout = drawn(layout.num_queries, width), drawn(layout.num_queries, width)
    context = drafter.context_keys_values(drafter.context_states(taps), layout.context_positions_T)
    hidden = drafter(block, layout.block_positions_Q(), context, attend)
    gradients = torch.autograd.grad((hidden * readout).sum(), list(drafter.parameters()))
    return hidden.detach().cpu().double(), [gradient.cpu().double() for gradient in gradients]


def test_by_document_equals_the_dense_reference_in_values_and_gradients(
    config: DrafterConfig, row: PackedRow, anchors: Anchors, make_drafter: Any
) -> None:
    drafter, layout = make_drafter(config), row_layout(row, anchors, config.block_size, device=CPU)
    dense, dense_grads = run(drafter, layout, eager_attend(config, layout))
    parted, parted_grads = run(drafter, layout, by_document_attend(config, layout))
    torch.testing.assert_close(parted, dense, rtol=1e-5, atol=1e-5)
    for got, wanted in zip(parted_grads, dense_grads, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_equals_the_dense_reference_in_values(
    config: DrafterConfig, row: PackedRow, anchors: Anchors, make_drafter: Any
) -> None:
    drafter, layout = make_drafter(config), row_layout(row, anchors, config.block_size, device=CPU)
    with torch.no_grad():
        taps = torch.randn(layout.num_context, 2 * config.hidden_size)
        block = torch.randn(layout.num_queries, config.hidden_size)
        context = drafter.context_keys_values(drafter.context_states(taps), layout.context_positions_T)
        dense, flex = (
            drafter(block, layout.block_positions_Q(), context, attend)
            for attend in (eager_attend(config, layout), flex_attend(config, layout))
        )
    torch.testing.assert_close(flex, dense, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["full", "causal"])
def test_our_kernels_equal_the_dense_reference_in_values_and_gradients(
    kind: str, row: PackedRow, anchors: Anchors, make_config: Any, make_drafter: Any
) -> None:
    """In Triton's interpreter, or on a GPU; sliding layers go to flex, whose backward pass needs one."""
    pytest.importorskip("triton", reason="triton has no build for this machine")
    config = make_config(**KINDS[kind])
    drafter, layout = make_drafter(config), row_layout(row, anchors, config.block_size, device=CPU)
    dense, dense_grads = run(drafter, layout, eager_attend(config, layout))
    if torch.cuda.is_available():
        cuda = torch.device("cuda")
        drafter, layout = drafter.to(cuda), row_layout(row, anchors, config.block_size, device=cuda)
    ours, our_grads = run(drafter, layout, triton_attend(config, layout))
    torch.testing.assert_close(ours, dense, rtol=1e-4, atol=1e-4)
    for got, wanted in zip(our_grads, dense_grads, strict=True):
        assert (got - wanted).norm() <= 1e-4 * wanted.norm()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_compiled_flex_equals_the_dense_reference_in_values_and_gradients(
    config: DrafterConfig, row: PackedRow, anchors: Anchors, make_drafter: Any
) -> None:
    drafter, layout = make_drafter(config).double(), row_layout(row, anchors, config.block_size, device=CPU)
    dense, dense_grads = run(drafter, layout, eager_attend(config, layout))
    cuda = torch.device("cuda")
    drafter, layout = drafter.float().to(cuda), row_layout(row, anchors, config.block_size, device=cuda)
    flex, flex_grads = run(drafter, layout, flex_attend(config, layout))
    torch.testing.assert_close(flex, dense, rtol=1e-4, atol=1e-4)
    for got, wanted in zip(flex_grads, dense_grads, strict=True):
        assert (got - wanted).norm() <= 1e-3 * wanted.norm()
