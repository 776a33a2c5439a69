"""The contract of losses and weightings: what they get of a group of blocks, and what they give.

A loss says what a row costs, a weighting how much it counts; any loss goes with any weighting. Both give sums, never
means: the optimizer divides by what a whole step adds up.
Axes: R rows (scored slots), D = E width, V vocabulary, N blocks, K slots of a block.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from dflashctl_remote.spec.objective import ObjectiveSpec


@dataclass(frozen=True)
class Rows:
    """The scored slots of a group of blocks, in order; a block's are all there: slots 1 to its last supervised one."""

    states_RD: Tensor
    """The drafter's final states, with gradient."""
    final_RE: Tensor | None
    """The target's final states at the position before each slot; None where the loss does not need them."""
    labels_R: Tensor
    slots_R: Tensor
    """k, from 1."""
    blocks_R: Tensor
    """Index of the block, rising; counted from whatever the first row's is."""
    num_blocks: int
    """Blocks of the group, those without rows too."""
    block_size: int


@dataclass(frozen=True)
class RowLosses:
    loss_R: Tensor
    """fp32, differentiable in the states row by row."""
    cross_entropy_R: Tensor
    """fp32, detached: -log of the drafter's probability of the label, whatever the loss is."""
    top1_R: Tensor
    """The drafter's arg-max."""


@dataclass(frozen=True)
class RowWeights:
    """Detached."""

    weights_R: Tensor
    """fp32."""
    total: Tensor
    """float64 scalar: this group's part of what the step's loss is divided by."""


class RowTerms(NamedTuple):
    """A group's contribution to a step."""

    loss_sum: Tensor
    """fp32 scalar with gradient."""
    weight_sum: Tensor
    """float64 scalar, detached, on the rows' device: what `loss_sum` is divided by once all groups are summed."""
    cross_entropy_R: Tensor
    top1_R: Tensor


class RowLoss(Protocol):
    def __call__(self, rows: Rows, head_VE: Tensor, objective: ObjectiveSpec) -> RowLosses:
        """Loss of each row; never more than `objective.loss_chunk_rows` rows of logits at a time."""


class Weighting(Protocol):
    def __call__(self, rows: Rows, losses: RowLosses, objective: ObjectiveSpec) -> RowWeights:
        """Weight of each row, from its slot and from what the drafter got right or likely in its block."""


def to_grid(rows: Rows, values_R: Tensor, fill: float) -> Tensor:
    """Values of rows at their block and slot, `fill` where no row is, column 0 included: [N, K] of their dtype."""
    grid_NK = torch.full((rows.num_blocks, rows.block_size), fill, dtype=values_R.dtype, device=values_R.device)
    grid_NK[_grid_blocks(rows), rows.slots_R] = values_R
    return grid_NK


def from_grid(rows: Rows, grid_NK: Tensor) -> Tensor:
    """The rows' own values out of a grid: [R]."""
    return grid_NK[_grid_blocks(rows), rows.slots_R]


def prefix_is_right(rows: Rows, top1_R: Tensor) -> tuple[Tensor, Tensor]:
    """Of each row, whether all slots before it in its block are right; and whether it is right as well: bool [R] each.

    Right: the drafter's arg-max is the label. Nothing stands before slot 1.
    """
    upto_NK = to_grid(rows, (top1_R == rows.labels_R).float(), 1.0).cumprod(dim=1)
    before_NK = torch.cat((torch.ones_like(upto_NK[:, :1]), upto_NK[:, :-1]), dim=1)
    return from_grid(rows, before_NK) > 0, from_grid(rows, upto_NK) > 0


def _grid_blocks(rows: Rows) -> Tensor:
    return rows.blocks_R - rows.blocks_R[:1]
