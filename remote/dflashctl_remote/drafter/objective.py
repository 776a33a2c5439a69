"""The training objective in one graph: from a packed row and the target's states to the weighted loss of the drafter's
slots. It is what step.py is compared with, and small enough to read; memory grows with the number of anchors.

Source: design of DFlash training. Slot k of a block anchored at p predicts the token at p+k; its label is the
arg-max of the target's clean final state at p+k-1 (or the text's own token); slot 0 is never scored, nor any slot from
the first unsupervised one on. Which loss and which weights: losses/.
Axes: T context tokens, N blocks, K slots, Q = N*K, R scored slots, D = E width, V vocabulary.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from dflashctl_remote.data.pack import PackedRow
from dflashctl_remote.drafter.anchors import Anchors
from dflashctl_remote.drafter.attention import by_document_attend, flex_attend, triton_attend
from dflashctl_remote.drafter.masks import Layout
from dflashctl_remote.drafter.model import Attend, Drafter, FrozenEnds
from dflashctl_remote.drafter.noise import ContextNoise
from dflashctl_remote.drafter.scored import Scored, scored_slots, to_device
from dflashctl_remote.losses.base import Rows
from dflashctl_remote.losses.confidence.head import confidence_of
from dflashctl_remote.losses.registry import RowTerms, row_terms
from dflashctl_remote.spec.drafter import DrafterConfig
from dflashctl_remote.spec.objective import ObjectiveSpec

AttentionName = Literal["eager", "flex", "triton"]


class States(Protocol):
    """The target's states of a packed row."""

    @property
    def taps_TF(self) -> Tensor: ...

    @property
    def final_TE(self) -> Tensor: ...


@dataclass(frozen=True)
class StepLoss:
    """Sums, not means: the caller divides by the weights of all micro-batches and ranks of a step."""

    loss_sum: Tensor
    """Scalar with gradient: sum of weight * loss over scored slots, nats."""
    weight_sum: float
    scored_by_slot_K: Tensor
    correct_by_slot_K: Tensor

    @property
    def num_scored(self) -> int:
        return int(self.scored_by_slot_K.sum())

    @property
    def num_correct(self) -> int:
        return int(self.correct_by_slot_K.sum())


def drafter_loss(
    drafter: Drafter,
    ends: FrozenEnds,
    row: PackedRow,
    states: States,
    anchors: Anchors,
    objective: ObjectiveSpec,
    *,
    attention: AttentionName,
    noise: ContextNoise | None = None,
) -> StepLoss:
    """Loss of one packed row. `noise` makes the copy of the taps that the drafter reads; labels never see it."""
    size = drafter.config.block_size
    layout = row_layout(row, anchors, size, device=states.taps_TF.device)
    taps_TF = states.taps_TF if noise is None else noise.added_to(states.taps_TF, len(drafter.config.tap_layers))
    hidden_QD = block_states(drafter, ends, row, taps_TF, layout, attention=attention)
    scored = scored_slots(ends, row, states.final_TE, anchors, objective, size)
    terms = scored_terms(drafter, ends, hidden_QD[scored.rows_R], scored, objective)
    is_correct = terms.top1_R == scored.labels_R
    return StepLoss(
        loss_sum=terms.loss_sum,
        weight_sum=terms.weight_sum.item(),
        scored_by_slot_K=torch.bincount(scored.slots_R, minlength=size),
        correct_by_slot_K=torch.bincount(scored.slots_R[is_correct], minlength=size),
    )


def scored_terms(
    drafter: Drafter, ends: FrozenEnds, states_RD: Tensor, scored: Scored, objective: ObjectiveSpec
) -> RowTerms:
    """Loss and weight of whole blocks' scored slots, whose final states are `states_RD`."""
    rows = Rows(
        states_RD=states_RD,
        final_RE=scored.final_RE,
        labels_R=scored.labels_R,
        slots_R=scored.slots_R,
        blocks_R=scored.blocks_R,
        num_blocks=len(scored.counts_N),
        block_size=drafter.config.block_size,
    )
    return row_terms(rows, ends.head_VE, objective, confidence=confidence_of(drafter))


def row_layout(row: PackedRow, anchors: Anchors, block_size: int, *, device: torch.device) -> Layout:
    """The row and its anchors as tensors for the visibility rule."""
    return Layout(
        context_positions_T=to_device(row.positions_T, device),
        context_documents_T=to_device(row.document_ids_T, device),
        anchor_indices_N=to_device(anchors.indices_N, device),
        anchor_positions_N=to_device(anchors.positions_N, device),
        anchor_documents_N=to_device(anchors.documents_N, device),
        block_size=block_size,
    )


def block_states(
    drafter: Drafter,
    ends: FrozenEnds,
    row: PackedRow,
    taps_TF: Tensor,
    layout: Layout,
    *,
    attention: AttentionName,
) -> Tensor:
    """Final states of all blocks [Q, D]: slot 0 is fed the anchor's embedding, the others the mask token's."""
    dtype = drafter.fc.weight.dtype
    context = drafter.context_keys_values(drafter.context_states(taps_TF.to(dtype)), layout.context_positions_T)
    ids_T = to_device(row.input_ids_T, taps_TF.device)
    ids_NK = block_ids(drafter.config, ids_T[layout.anchor_indices_N])
    block_QD = ends.embed(ids_NK.flatten()).to(dtype)
    return drafter(block_QD, layout.block_positions_Q(), context, attend_by(attention, drafter.config, layout))


def block_ids(config: DrafterConfig, anchor_ids_N: Tensor) -> Tensor:
    """What blocks are fed: the anchor's token, then mask tokens: int64 [N, K]."""
    masks_NK = anchor_ids_N.new_full((len(anchor_ids_N), config.block_size), config.mask_token_id)
    masks_NK[:, 0] = anchor_ids_N
    return masks_NK


def attend_by(name: AttentionName, config: DrafterConfig, layout: Layout) -> Attend:
    """The attention of that name over a layout; eager goes document by document."""
    attends = {"eager": by_document_attend, "flex": flex_attend, "triton": triton_attend}
    return attends[name](config, layout)
