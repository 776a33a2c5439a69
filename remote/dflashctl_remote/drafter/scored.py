"""The slots of a batch that are scored, with labels: made in the target's stage, where the clean final states are.

Axes: T context tokens, N blocks, K slots, Q = N*K, R scored slots, E target width, V vocabulary.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dflashctl_remote.data.pack import PackedRow
from dflashctl_remote.drafter.anchors import Anchors, slot_supervision
from dflashctl_remote.drafter.model import FrozenEnds
from dflashctl_remote.losses.linear_ce import linear_argmax
from dflashctl_remote.losses.registry import needs_final
from dflashctl_remote.spec.objective import ObjectiveSpec


@dataclass(frozen=True)
class Scored:
    """The R scored slots of N blocks, flattened from [N, K] in order: a block's are slots 1 to its last supervised one.

    How many each block has is known on the host, so that no one waits for the device to cut them into groups.
    """

    rows_R: Tensor
    """Index into the Q block tokens."""
    slots_R: Tensor
    """k, from 1."""
    blocks_R: Tensor
    """Index of the block, rising."""
    labels_R: Tensor
    final_RE: Tensor | None
    """The target's clean final state at p+k-1; None where the objective does not ask for it."""
    counts_N: np.ndarray
    """Scored slots of each block, on the host."""

    def blocks(self, first: int, last: int, block_size: int) -> "Scored":
        """Those of blocks first..last-1, counted from block `first`. Blocks past the last have none."""
        start, stop = int(self.counts_N[:first].sum()), int(self.counts_N[:last].sum())
        here = slice(start, stop)
        return Scored(
            rows_R=self.rows_R[here] - first * block_size,
            slots_R=self.slots_R[here],
            blocks_R=self.blocks_R[here] - first,
            labels_R=self.labels_R[here],
            final_RE=None if self.final_RE is None else self.final_RE[here],
            counts_N=self.counts_N[first:last],
        )

    def to(self, device: torch.device) -> "Scored":
        """The tensors on another device, without waiting where they come from pinned memory."""

        def moved(values: Tensor) -> Tensor:
            return values.to(device, non_blocking=True)

        return replace(
            self,
            rows_R=moved(self.rows_R),
            slots_R=moved(self.slots_R),
            blocks_R=moved(self.blocks_R),
            labels_R=moved(self.labels_R),
            final_RE=None if self.final_RE is None else moved(self.final_RE),
        )


@torch.no_grad()
def scored_slots(
    ends: FrozenEnds,
    row: PackedRow,
    final_TE: Tensor,
    anchors: Anchors,
    objective: ObjectiveSpec,
    block_size: int,
) -> Scored:
    """Which slots count, with their labels, on the device of `final_TE`: the target's states after its final norm.

    The label of slot k is the target's arg-max at p+k-1, made once for every position that is needed and for no
    other, or (`labels: data`) the text's own token at p+k.
    """
    device = final_TE.device
    supervised_NK = slot_supervision(row, anchors, block_size)
    blocks, slots = np.nonzero(supervised_NK)
    predicted = anchors.indices_N[blocks] + slots
    before_R = to_device(predicted - 1, device)
    if objective.labels == "data":
        labels_R = to_device(row.input_ids_T[predicted], device)
    else:
        needed, inverse = np.unique(predicted - 1, return_inverse=True)
        top1 = linear_argmax(
            final_TE.index_select(0, to_device(needed, device)), ends.head_VE, chunk_rows=objective.loss_chunk_rows
        )
        labels_R = top1.index_select(0, to_device(inverse, device))
    return Scored(
        rows_R=to_device(blocks * block_size + slots, device),
        slots_R=to_device(slots, device),
        blocks_R=to_device(blocks, device),
        labels_R=labels_R,
        final_RE=final_TE.index_select(0, before_R) if needs_final(objective) else None,
        counts_N=supervised_NK.sum(axis=1),
    )


def to_device(values: np.ndarray, device: torch.device) -> Tensor:
    """An int64 tensor; to a GPU from pinned memory, so that the host does not wait for the work in its queue."""
    tensor = torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
