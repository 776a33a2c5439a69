"""The training objective: from a packed row and the target's states to the weighted loss of the drafter's slots.

Source: design of DFlash training. Slot k of a block anchored at p predicts the token at p+k; its label is the
arg-max of the target's clean final state at p+k-1 (or the text's own token); hard cross-entropy, weight
exp(-(k-1)/gamma); slot 0 is never scored, nor any slot from the first unsupervised one on.
Axes: T context tokens, N blocks, K slots, Q = N*K, R scored slots, D = E width, V vocabulary.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from dflashctl_remote.data.pack import PackedRow
from dflashctl_remote.drafter.anchors import Anchors, slot_supervision
from dflashctl_remote.drafter.attention import by_document_attend, flex_attend
from dflashctl_remote.drafter.masks import Layout
from dflashctl_remote.drafter.model import Attend, Drafter
from dflashctl_remote.losses.linear_ce import linear_argmax, linear_cross_entropy
from dflashctl_remote.spec.drafter import default_gamma
from dflashctl_remote.spec.train import ObjectiveSpec

AttentionName = Literal["eager", "flex"]


class FrozenEnds(Protocol):
    """What the drafter borrows of the target: its embedding and its head."""

    @property
    def head_VE(self) -> Tensor: ...

    def embed(self, ids: Tensor) -> Tensor: ...


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
    """Scalar with gradient: sum of weight * cross-entropy over scored slots, nats."""
    weight_sum: float
    scored_by_slot_K: Tensor
    correct_by_slot_K: Tensor

    @property
    def num_scored(self) -> int:
        return int(self.scored_by_slot_K.sum())

    @property
    def num_correct(self) -> int:
        return int(self.correct_by_slot_K.sum())


@dataclass(frozen=True)
class ScoredSlots:
    """The R slots of a row that are scored, flattened from [N, K] in order."""

    rows_R: Tensor
    """Index into the Q block tokens."""
    slots_R: Tensor
    """k, from 1."""
    labels_R: Tensor
    weights_R: Tensor


def drafter_loss(
    drafter: Drafter,
    target: FrozenEnds,
    row: PackedRow,
    states: States,
    anchors: Anchors,
    objective: ObjectiveSpec,
    *,
    attention: AttentionName,
    noise_generator: torch.Generator | None = None,
) -> StepLoss:
    """Loss of one packed row.

    `noise_generator` (on the CPU) is needed when the objective asks for context noise; the noise touches the
    copy that the drafter reads, never the states that labels come from.
    """
    layout = row_layout(row, anchors, drafter.config.block_size, device=states.taps_TF.device)
    taps_TF = noised(states.taps_TF, objective.context_noise_std, noise_generator)
    hidden_QD = block_states(drafter, target, row, taps_TF, layout, attention=attention)
    scored = scored_slots(drafter, target, row, states, anchors, objective)
    loss = linear_cross_entropy(
        hidden_QD[scored.rows_R],
        target.head_VE,
        scored.labels_R,
        scored.weights_R,
        chunk_rows=objective.loss_chunk_rows,
    )
    is_correct = loss.top1_R == scored.labels_R
    size = drafter.config.block_size
    return StepLoss(
        loss_sum=loss.loss_sum,
        weight_sum=float(scored.weights_R.double().sum()),
        scored_by_slot_K=torch.bincount(scored.slots_R, minlength=size),
        correct_by_slot_K=torch.bincount(scored.slots_R[is_correct], minlength=size),
    )


def row_layout(row: PackedRow, anchors: Anchors, block_size: int, *, device: torch.device) -> Layout:
    """The row and its anchors as tensors for the visibility rule."""

    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)).to(device)

    return Layout(
        context_positions_T=tensor(row.positions_T),
        context_documents_T=tensor(row.document_ids_T),
        anchor_indices_N=tensor(anchors.indices_N),
        anchor_positions_N=tensor(anchors.positions_N),
        anchor_documents_N=tensor(anchors.documents_N),
        block_size=block_size,
    )


def block_states(
    drafter: Drafter,
    target: FrozenEnds,
    row: PackedRow,
    taps_TF: Tensor,
    layout: Layout,
    *,
    attention: AttentionName,
) -> Tensor:
    """Final states of all blocks [Q, D]: slot 0 is fed the anchor's embedding, the others the mask token's."""
    context_TD = drafter.context_states(taps_TF.to(drafter.fc.weight.dtype))
    context = drafter.context_keys_values(context_TD, layout.context_positions_T)
    ids_T = torch.from_numpy(row.input_ids_T).to(taps_TF.device)
    block_ids_NK = torch.full(
        (len(layout.anchor_indices_N), layout.block_size),
        drafter.config.mask_token_id,
        dtype=torch.int64,
        device=taps_TF.device,
    )
    block_ids_NK[:, 0] = ids_T[layout.anchor_indices_N]
    block_QD = target.embed(block_ids_NK.flatten()).to(drafter.fc.weight.dtype)
    return drafter(block_QD, layout.block_positions_Q(), context, _attend(drafter, layout, attention))


def scored_slots(
    drafter: Drafter,
    target: FrozenEnds,
    row: PackedRow,
    states: States,
    anchors: Anchors,
    objective: ObjectiveSpec,
) -> ScoredSlots:
    """Which slots count, with label and weight. The label pass touches only the positions that are needed."""
    size = drafter.config.block_size
    device = states.final_TE.device
    blocks, slots = np.nonzero(slot_supervision(row, anchors, size))
    predicted = anchors.indices_N[blocks] + slots
    gamma = objective.gamma or default_gamma(size)
    if objective.labels == "data":
        labels_R = torch.from_numpy(row.input_ids_T[predicted]).to(device)
    else:
        needed, inverse = np.unique(predicted - 1, return_inverse=True)
        top1 = linear_argmax(
            states.final_TE[torch.from_numpy(needed).to(device)],
            target.head_VE,
            chunk_rows=objective.loss_chunk_rows,
        )
        labels_R = top1[torch.from_numpy(inverse).to(device)]
    return ScoredSlots(
        rows_R=torch.from_numpy(blocks * size + slots).to(device),
        slots_R=torch.from_numpy(slots).to(device),
        labels_R=labels_R,
        weights_R=torch.from_numpy(np.exp(-(slots - 1) / gamma).astype(np.float32)).to(device),
    )


def noised(taps_TF: Tensor, std: float, generator: torch.Generator | None) -> Tensor:
    """A copy with Gaussian noise of `std` times the states' RMS; the states themselves where std is 0."""
    if std == 0:
        return taps_TF
    assert generator is not None, "context noise needs a generator seeded by (seed, batch)"
    noise = torch.randn(taps_TF.shape, generator=generator, dtype=torch.float32).to(taps_TF.device)
    rms = taps_TF.float().pow(2).mean().sqrt()
    return (taps_TF.float() + std * rms * noise).to(taps_TF.dtype)


def _attend(drafter: Drafter, layout: Layout, attention: AttentionName) -> Attend:
    if attention == "flex":
        return flex_attend(drafter.config, layout, is_compiled=layout.context_positions_T.is_cuda)
    return by_document_attend(drafter.config, layout)
