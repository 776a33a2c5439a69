"""Loss and accuracies on rows that are given, teacher-forced: one yardstick for all runs, whatever their objective.

Axes: R scored slots, K slots of a block.
"""

import numpy as np
import torch
from torch import Tensor

from dflashctl_remote.data.pack import PackedRow
from dflashctl_remote.drafter.anchors import Anchors, slot_supervision
from dflashctl_remote.evaluate.parity import AsTrained
from dflashctl_remote.losses.linear_ce import linear_argmax, linear_cross_entropy
from dflashctl_remote.spec.drafter import default_gamma


class Totals:
    """Sums over rows."""

    def __init__(self, block_size: int) -> None:
        self.loss_sum, self.weight_sum = 0.0, 0.0
        self._scored_K = torch.zeros(block_size, dtype=torch.int64)
        self._correct_K = torch.zeros(block_size, dtype=torch.int64)

    def add(self, loss_sum: float, weight_sum: float, slots_R: Tensor, is_correct_R: Tensor) -> None:
        size = len(self._scored_K)
        self.loss_sum += loss_sum
        self.weight_sum += weight_sum
        self._scored_K += torch.bincount(slots_R, minlength=size)
        self._correct_K += torch.bincount(slots_R[is_correct_R], minlength=size)

    @property
    def loss(self) -> float:
        return self.loss_sum / self.weight_sum

    @property
    def accuracy_by_slot(self) -> tuple[float, ...]:
        return tuple((self._correct_K[1:].double() / self._scored_K[1:].clamp(min=1)).tolist())


def score(path: AsTrained, row: PackedRow, anchors: Anchors, totals: Totals) -> None:
    """Hard cross-entropy against the target's own arg-max, whatever the run's objective: one yardstick for all."""
    size = path.drafter.config.block_size
    states = path.states(row)
    blocks_QD = path.blocks(row, states, anchors)
    blocks, slots = np.nonzero(slot_supervision(row, anchors, size))
    needed, inverse = np.unique(anchors.indices_N[blocks] + slots - 1, return_inverse=True)
    device = blocks_QD.device
    top1 = linear_argmax(states.final_TE[torch.from_numpy(needed).to(device)], path.ends.head_VE)
    labels_R = top1[torch.from_numpy(inverse).to(device)]
    weights_R = torch.from_numpy(np.exp(-(slots - 1) / default_gamma(size)).astype(np.float32)).to(device)
    rows_R = torch.from_numpy(blocks * size + slots).to(device)
    scored = linear_cross_entropy(blocks_QD[rows_R], path.ends.head_VE, labels_R, weights_R)
    totals.add(
        float((scored.cross_entropy_R.double() * weights_R).sum()),
        float(weights_R.double().sum()),
        torch.from_numpy(slots),
        (scored.top1_R == labels_R).cpu(),
    )
