"""The Triton kernels against fp64: in the interpreter on a CPU, compiled where there is a GPU."""

from functools import partial

import pytest
import torch
from torch import Tensor

from dflashctl_remote.kernels.anchor_attention import reference, triton_op
from dflashctl_remote.kernels.anchor_attention.check import random_tensors, random_visible, split, with_gradients
from dflashctl_remote.kernels.anchor_attention.ranges import PassTuning, Tuning, is_supported, make_ranges, tuning_for
from dflashctl_remote.kernels.anchor_attention.visible import Visible

pytestmark = [
    pytest.mark.usefixtures("interpreter", "poisoned"),
    # Poisoning memory is a side of deterministic mode; on a GPU that has a word to say about matrix products.
    pytest.mark.filterwarnings("default:.*eterministic:UserWarning"),
]

SMALL = Tuning(PassTuning(32, 4, 2), PassTuning(16, 4, 2, rows=64), PassTuning(16, 4, 2))
"""Several tiles even of a small context."""
NAMES = ("mixed", "query", "key", "value")


def errors(visible: Visible, heads: int, kv_heads: int, size: int, dtype: torch.dtype) -> dict[str, float]:
    """Norm of what is off, over that of the truth; NaN if anything was not written."""
    tensors = [one.to(dtype) for one in random_tensors(visible, heads, kv_heads, size, visible.anchors_N.device)]
    ranges = make_ranges(visible, heads // kv_heads, SMALL)
    found = with_gradients(
        partial(split(triton_op.anchor_attention), num_context=visible.num_context, ranges=ranges), tensors
    )
    exact = with_gradients(partial(reference.anchor_attention, visible=visible), [one.double() for one in tensors])
    return {
        name: float((one.double() - other).norm() / other.norm())
        for name, one, other in zip(NAMES, found, exact, strict=True)
    }


def at(pairs: list[tuple[int, int]], num_context: int, block_size: int, device: torch.device) -> Visible:
    """Blocks of these (start of document, anchor)."""
    starts, anchors = (torch.tensor(one, dtype=torch.int32, device=device) for one in zip(*pairs, strict=True))
    return Visible(starts, anchors, num_context, block_size)


@pytest.mark.parametrize("kind", ["full", "causal"])
@pytest.mark.parametrize(
    ("num_blocks", "block_size", "num_context", "heads"),
    [(7, 16, 100, (4, 2)), (5, 16, 61, (8, 2)), (9, 5, 77, (3, 1)), (3, 10, 33, (2, 2)), (2, 32, 40, (6, 2))],
)
def test_values_and_gradients_are_the_references_at_odd_sizes(kind, num_blocks, block_size, num_context, heads, device):
    visible = random_visible(kind, num_blocks, block_size, num_context, device)
    for name, error in errors(visible, *heads, 16, torch.float32).items():
        assert error <= 1e-5, name


def test_half_precision_is_off_by_its_own_rounding(device):
    """The interpreter cannot multiply bf16."""
    dtype, limit = (torch.bfloat16, 1e-2) if device.type == "cuda" else (torch.float16, 1e-3)
    visible = random_visible("full", 6, 16, 90, device)
    for name, error in errors(visible, 8, 2, 32, dtype).items():
        assert error <= limit, name


def test_documents_without_anchors_and_tokens_behind_the_last_leave_zeros(device):
    """Keys 0 to 39 and from 60 on are nobody's."""
    visible = at([(40, 45), (40, 52), (40, 60)], 96, 16, device)
    assert max(errors(visible, 4, 2, 16, torch.float32).values()) <= 1e-5
    key_grad, value_grad = _context_gradients(visible, device)
    for gradient in (key_grad, value_grad):
        assert gradient[:, 40:60].abs().sum(-1).min() > 0
        assert not gradient[:, :40].any() and not gradient[:, 60:].any()


def test_padding_blocks_see_themselves_alone(device):
    """Among others of their tile, and all of them."""
    mixed = at([(0, 0), (8, 20), (0, 0), (8, 30), (0, 0), (0, 0)], 50, 16, device)
    assert max(errors(mixed, 4, 2, 16, torch.float32).values()) <= 1e-5
    nobody = at([(0, 0)] * 3, 50, 16, device)
    assert errors(nobody, 4, 2, 16, torch.float32)["mixed"] <= 1e-5
    assert not any(gradient.any() for gradient in _context_gradients(nobody, device))


def test_an_anchor_at_the_start_of_its_document_sees_no_context(device):
    visible = at([(0, 0), (0, 1), (7, 7), (7, 8), (30, 30)], 41, 16, device)
    assert max(errors(visible, 4, 2, 16, torch.float32).values()) <= 1e-5


def test_tiles_over_the_border_of_documents(device):
    """Every tile of blocks and of keys has several documents in it."""
    visible = at([(s, s + 5) for s in range(0, 66, 6)], 70, 16, device)
    assert max(errors(visible, 4, 2, 16, torch.float32).values()) <= 1e-5


def test_anchors_in_any_order(device):
    pairs = [(0, 40), (41, 90), (0, 3), (41, 50), (0, 39), (41, 89), (0, 20)]
    assert max(errors(at(pairs, 96, 16, device), 4, 2, 16, torch.float32).values()) <= 1e-5


def test_gradients_are_the_same_in_every_run(device):
    visible = random_visible("full", 12, 16, 200, device)
    one, other = (_context_gradients(visible, device) for _ in range(2))
    assert all(torch.equal(first, second) for first, second in zip(one, other, strict=True))


def test_tensors_may_lie_with_heads_or_with_tokens_outside(device):
    visible = random_visible("full", 5, 16, 60, device)
    tensors = [one.float() for one in random_tensors(visible, 4, 2, 16, device)]
    turned = [one.transpose(0, 1).contiguous().transpose(0, 1) for one in tensors]
    run = partial(split(triton_op.anchor_attention), num_context=60, ranges=make_ranges(visible, 2, SMALL))
    for one, other in zip(with_gradients(run, tensors), with_gradients(run, turned), strict=True):
        assert torch.equal(one, other)


def test_no_gradient_of_the_context_is_made_if_none_is_wanted(device):
    visible = random_visible("full", 3, 16, 40, device)
    query, key, value, back = (one.float() for one in random_tensors(visible, 4, 2, 16, device))
    query.requires_grad_()
    mixed = split(triton_op.anchor_attention)(query, key, value, num_context=40, ranges=make_ranges(visible, 2, SMALL))
    mixed.backward(back)
    assert query.grad is not None and key.grad is None


def test_what_the_kernel_has_no_shape_for_is_refused(device):
    windowed = random_visible("window", 3, 16, 40, device)
    assert not is_supported(windowed, 2, 16)
    assert not is_supported(random_visible("full", 3, 64, 40, device), 4, 128)
    assert not is_supported(random_visible("full", 3, 16, 40, device), 4, 80)
    query, key, value, _ = (one.float() for one in random_tensors(windowed, 4, 2, 16, device))
    with pytest.raises(ValueError, match="take flex"):
        split(triton_op.anchor_attention)(query, key, value, num_context=40, ranges=make_ranges(windowed, 2, SMALL))


def _context_gradients(visible: Visible, device: torch.device) -> tuple[Tensor, Tensor]:
    tensors = [one.float() for one in random_tensors(visible, 4, 2, 16, device)]
    run = partial(
        split(triton_op.anchor_attention), num_context=visible.num_context, ranges=make_ranges(visible, 2, SMALL)
    )
    _, _, key, value = with_gradients(run, tensors)
    return key[:, : visible.num_context], value[:, : visible.num_context]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_real_shape_in_bf16_is_the_references():
    """One document with 32 blocks, as in a step: 32 heads of 128; the dense fp64 grid has room for no more."""
    cuda = torch.device("cuda")
    anchors = torch.arange(40, 2040, 63, device=cuda, dtype=torch.int32)
    visible = Visible(torch.zeros_like(anchors), anchors, 2048, 16)
    tensors = random_tensors(visible, 32, 8, 128, cuda)
    run = partial(
        split(triton_op.anchor_attention),
        num_context=2048,
        ranges=make_ranges(visible, 4, tuning_for(cuda, torch.bfloat16)),
    )
    exact = with_gradients(partial(reference.anchor_attention, visible=visible), [one.double() for one in tensors])
    for name, one, other in zip(NAMES, with_gradients(run, tensors), exact, strict=True):
        assert (one.double() - other).norm() <= 1e-2 * other.norm(), name
