"""A training step's forward and backward pass in memory that does not grow with the number of anchors.

The context's keys and values are made once and become leaves; the blocks go through the drafter in groups of fixed
shape, each forward and backward, and add to the gradients of the weights and of these leaves; one backward pass through
the context's own graph ends the step. Blocks never see each other, so the gradients are those of `drafter_loss`, which
does all of it in one graph. The mathematics and the memory in bytes: README.md. Nothing here waits for the device.

Axes: T context tokens, N blocks, K slots, Q block tokens of a group, D width, F = taps*D, R scored slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dflashctl_remote.data.pack import PackedRow
from dflashctl_remote.drafter.anchors import Anchors
from dflashctl_remote.drafter.masks import NO_DOCUMENT
from dflashctl_remote.drafter.model import Drafter, FrozenEnds, KeysValues
from dflashctl_remote.drafter.noise import ContextNoise
from dflashctl_remote.drafter.objective import AttentionName, attend_by, block_ids, row_layout, scored_terms
from dflashctl_remote.drafter.ops import step_ops
from dflashctl_remote.drafter.scored import Scored, to_device
from dflashctl_remote.drafter.trim import Trim
from dflashctl_remote.kernels.anchor_attention.visible import TILE
from dflashctl_remote.spec.objective import ObjectiveSpec

DEFAULT_ANCHORS_PER_GROUP = 256


class StepBatch(Protocol):
    """A batch as it leaves the target's stage."""

    @property
    def row(self) -> PackedRow: ...
    @property
    def anchors(self) -> Anchors: ...
    @property
    def taps_TF(self) -> Tensor: ...
    @property
    def scored(self) -> Scored: ...


@dataclass(frozen=True)
class StepSums:
    """Sums of a batch in one tensor on the device; add those of an optimizer step, then read them once."""

    packed: Tensor
    """float64 [2 + 2K]: loss, weight, scored by slot, correct by slot."""

    def __add__(self, other: "StepSums") -> "StepSums":
        return StepSums(self.packed + other.packed)

    def read(self) -> "StepTotals":
        """Waits for the device."""
        loss, weight, *counts = self.packed.tolist()
        size = len(counts) // 2
        numbers = [round(count) for count in counts]
        return StepTotals(loss, weight, tuple(numbers[:size]), tuple(numbers[size:]))


@dataclass(frozen=True)
class StepTotals:
    loss_sum: float
    weight_sum: float
    scored_by_slot_K: tuple[int, ...]
    correct_by_slot_K: tuple[int, ...]


def drafter_step(
    drafter: Drafter,
    ends: FrozenEnds,
    batch: StepBatch,
    objective: ObjectiveSpec,
    *,
    attention: AttentionName,
    noise: ContextNoise | None = None,
    anchors_per_group: int | None = None,
    trims: bool | None = None,
) -> StepSums:
    """Add the gradients of the batch's loss sum to the drafter's `.grad`, and give the sums.

    `noise` makes the copy of the taps that the drafter reads. `anchors_per_group` bounds the blocks that are in
    memory together (None: the objective's, or DEFAULT_ANCHORS_PER_GROUP) and changes rounding alone. So does `trims`:
    whether products are left out that no loss needs (trim.py; None: on a GPU).
    Matrices' gradients are added inside the backward pass, not by autograd: hooks on parameters do not see them.
    """
    device, size = batch.taps_TF.device, drafter.config.block_size
    ops = step_ops(device)
    most = anchors_per_group or objective.anchors_per_group or DEFAULT_ANCHORS_PER_GROUP
    per_group = group_size(len(batch.anchors), most, size)
    anchors = _padded(batch.anchors, -len(batch.anchors) % per_group)
    dtype, is_trimmed = drafter.fc.weight.dtype, device.type == "cuda" if trims is None else trims
    taps_TF = batch.taps_TF if noise is None else noise.added_to(batch.taps_TF, len(drafter.config.tap_layers))
    # First: the host prepares the rest while the device is at this, the largest product before the blocks.
    context_TD = drafter.context_states(taps_TF.to(dtype), ops)
    layout = row_layout(batch.row, anchors, size, device=device)
    ids_NK = block_ids(drafter.config, to_device(batch.row.input_ids_T[anchors.indices_N], device))
    context = drafter.context_keys_values(context_TD, layout.context_positions_T, ops)
    leaves = tuple(KeysValues(_leaf(one.key_GTC), _leaf(one.value_GTC)) for one in context)
    packed = torch.zeros(2 + 2 * size, dtype=torch.float64, device=device)
    for first in range(0, len(anchors), per_group):
        last = first + per_group
        scored = batch.scored.blocks(first, last, size)
        if not scored.counts_N.any():
            continue
        group = layout.blocks(first, last)
        trim = Trim.of(ends, ids_NK[first:last], dtype) if is_trimmed else None
        block_QD = ends.embed(ids_NK[first:last].flatten()).to(dtype) if trim is None else trim.spread(trim.distinct_UD)
        hidden_QD = drafter(
            block_QD, group.block_positions_Q(), leaves, attend_by(attention, drafter.config, group), ops, trim
        )
        rows_R = scored.rows_R if trim is None else trim.scorable_index(scored.rows_R, scored.blocks_R)
        states_RD = _Rows.apply(hidden_QD, rows_R)
        packed += _backward(drafter, ends, states_RD, scored, objective, size)
    _backward_through(context, leaves)
    return StepSums(packed)


def group_size(num_anchors: int, most: int, block_size: int) -> int:
    """Blocks of a group: as few groups as `most` allows, as equal as whole tiles of queries allow.

    A function of the run's settings alone, so that every group of every batch has one shape.
    """
    even = -(-num_anchors // -(-num_anchors // most))
    per_tile = max(1, TILE // block_size)
    return even if even < per_tile else min(-(-even // per_tile) * per_tile, most)


def _backward(
    drafter: Drafter, ends: FrozenEnds, states_RD: Tensor, scored: Scored, objective: ObjectiveSpec, block_size: int
) -> Tensor:
    """Backward through a group's rows; gives its part of StepSums.packed."""
    terms = scored_terms(drafter, ends, states_RD, scored, objective)
    terms.loss_sum.backward()
    ones_R = torch.ones_like(scored.slots_R, dtype=torch.float64)
    none_K = ones_R.new_zeros(block_size)
    return torch.cat(
        (
            terms.loss_sum.detach().double()[None],
            terms.weight_sum[None],
            none_K.index_add(0, scored.slots_R, ones_R),
            none_K.index_add(0, scored.slots_R, (terms.top1_R == scored.labels_R).double()),
        )
    )


def _backward_through(context: Sequence[KeysValues], leaves: Sequence[KeysValues]) -> None:
    """What the groups left at the leaves goes on to the weights that made the context; nothing, if no group ran."""
    made = [tensor for one in context for tensor in (one.key_GTC, one.value_GTC)]
    gradients = [leaf.grad for one in leaves for leaf in (one.key_GTC, one.value_GTC)]
    there = [(tensor, gradient) for tensor, gradient in zip(made, gradients, strict=True) if gradient is not None]
    if there:
        tensors, grad_tensors = zip(*there, strict=True)
        torch.autograd.backward(tensors, grad_tensors)


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_()


def _padded(anchors: Anchors, num_padding: int) -> Anchors:
    def longer(values: np.ndarray, fill: int) -> np.ndarray:
        return np.concatenate((values, np.full(num_padding, fill, dtype=values.dtype)))

    return Anchors(
        indices_N=longer(anchors.indices_N, 0),
        positions_N=longer(anchors.positions_N, 0),
        documents_N=longer(anchors.documents_N, NO_DOCUMENT),
        num_real=anchors.num_real,
    )


class _Rows(torch.autograd.Function):
    """hidden_QD[rows_R] for rows that are all different: their gradients are copied to their places, not added."""

    @staticmethod
    def forward(ctx: Any, hidden_QD: Tensor, rows_R: Tensor) -> Tensor:
        ctx.save_for_backward(rows_R)
        ctx.shape = hidden_QD.shape
        return hidden_QD.index_select(0, rows_R)

    @staticmethod
    def backward(ctx: Any, gradient_RD: Tensor) -> tuple[Tensor, None]:
        (rows_R,) = ctx.saved_tensors
        return gradient_RD.new_zeros(ctx.shape).index_copy_(0, rows_R, gradient_RD), None
