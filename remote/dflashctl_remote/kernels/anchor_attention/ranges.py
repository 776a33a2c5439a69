"""What the Triton kernels are told of a group of blocks: who meets whom, in which order, cut into which tiles.

All of it is elementwise integer work on the device; the host waits for nothing. Axes as in visible.py; J tiles of
context keys, I tiles of blocks.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from dflashctl_remote.kernels.anchor_attention.visible import Visible
from dflashctl_remote.kernels.common.rows import next_power_of_2

MOST_ROWS = 128


@dataclass(frozen=True)
class PassTuning:
    """Constants of one kernel; fixed, so that nothing is tuned at run time by several threads at once."""

    keys: int
    """Keys of a tile."""
    num_warps: int
    num_stages: int
    rows: int = MOST_ROWS
    """Of a tile of queries: blocks * heads of one key-value head * slots, each rounded up to a power of two.

    The context's kernel has no such tiles, it takes block by block.
    """


@dataclass(frozen=True)
class Tuning:
    forward: PassTuning = PassTuning(keys=128, num_warps=8, num_stages=2)
    queries: PassTuning = PassTuning(keys=64, num_warps=8, num_stages=3)
    """Backward: gradients of queries, and of the blocks' own keys and values."""
    context: PassTuning = PassTuning(keys=128, num_warps=8, num_stages=2)
    """Backward: gradients of the context's keys and values."""


COMPACT = Tuning(PassTuning(32, 4, 2, 64), PassTuning(32, 4, 2, 64), PassTuning(64, 4, 2))
"""For GPUs with 99 KiB of shared memory a multiprocessor, and for fp32: there the other does not fit."""
ROOMY = (9, 10)
"""Major capabilities of GPUs with 227 KiB."""


def tuning_for(device: torch.device, dtype: torch.dtype) -> Tuning:
    if device.type != "cuda":
        return Tuning()
    is_roomy = torch.cuda.get_device_capability(device)[0] in ROOMY
    return Tuning() if is_roomy and dtype.itemsize <= 2 else COMPACT


@dataclass(frozen=True)
class Tiles:
    blocks: int
    """Of one tile."""
    order_I: Tensor
    """Tiles of blocks, longest range first: the short ones fill up what the long ones leave idle."""


@dataclass(frozen=True)
class Ranges:
    """Of one group of blocks; made once, used by every layer in both directions. Tensors are int32."""

    visible: Visible
    tuning: Tuning
    slots: int
    """Block size, rounded up to what a matrix product takes."""
    heads: int
    """Query heads of a key-value head, rounded up."""
    forward: Tiles
    queries: Tiles
    first_J: Tensor
    """First block that sees something of a tile of keys."""
    full_J: Tensor
    """From here to the last one every block sees the tile whole."""
    last_J: Tensor
    """One past the last block that sees something of it; no larger than first_J where nobody does."""
    order_J: Tensor
    """Tiles of keys, most blocks first."""


def is_supported(visible: Visible, heads_per_kv: int, size: int) -> bool:
    """No window, a block's rows of one key-value head within a tile, and a head size that Triton can multiply."""
    rows = padded_slots(visible.block_size) * next_power_of_2(heads_per_kv)
    return visible.window is None and rows <= MOST_ROWS and size in (16, 32, 64, 128)


def padded_slots(block_size: int) -> int:
    return max(16, next_power_of_2(block_size))


def make_ranges(visible: Visible, heads_per_kv: int, tuning: Tuning = Tuning()) -> Ranges:
    """Anchors may stand in any order; sorted ones have short ranges.

    A tile of keys lists its blocks as one run. Blocks inside that run that see nothing of it are masked, so they cost
    time and change nothing; sorted anchors have none but at the border of two documents.
    """
    starts_N, anchors_N = visible.starts_N, visible.anchors_N
    num_blocks, device = anchors_N.shape[0], anchors_N.device
    slots, heads = padded_slots(visible.block_size), next_power_of_2(heads_per_kv)
    forward = _tiles(visible, tuning.forward.rows // (slots * heads))
    is_same = tuning.queries.rows == tuning.forward.rows
    queries = forward if is_same else _tiles(visible, tuning.queries.rows // (slots * heads))

    width = tuning.context.keys
    key_J1 = torch.arange(0, visible.num_context, width, device=device, dtype=torch.int32)[:, None]
    at_N = torch.arange(num_blocks, device=device, dtype=torch.int32)
    touches_JN = (starts_N < key_J1 + width) & (anchors_N > torch.maximum(starts_N, key_J1))
    covers_JN = (starts_N <= key_J1) & (anchors_N >= key_J1 + width)
    first_J1 = torch.where(touches_JN, at_N, num_blocks).amin(dim=1, keepdim=True)
    last_J1 = torch.where(touches_JN, at_N + 1, 0).amax(dim=1, keepdim=True)
    full_J1 = torch.where(covers_JN | (at_N >= last_J1), first_J1, torch.maximum(at_N + 1, first_J1))
    return Ranges(
        visible=visible,
        tuning=tuning,
        slots=slots,
        heads=heads,
        forward=forward,
        queries=queries,
        first_J=first_J1[:, 0].contiguous(),
        full_J=full_J1.amax(dim=1),
        last_J=last_J1[:, 0].contiguous(),
        order_J=(last_J1 - first_J1)[:, 0].argsort(descending=True).int(),
    )


def _tiles(visible: Visible, most_blocks: int) -> Tiles:
    blocks = max(1, most_blocks)
    lengths_N = F.pad(visible.anchors_N - visible.starts_N, (0, -len(visible.anchors_N) % blocks))
    return Tiles(blocks, lengths_N.view(-1, blocks).amax(dim=1).argsort(descending=True).int())
