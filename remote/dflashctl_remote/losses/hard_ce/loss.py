"""Cross-entropy against the label alone: see README.md."""

from torch import Tensor

from dflashctl_remote.losses.base import RowLosses, Rows
from dflashctl_remote.losses.linear_ce import linear_cross_entropy
from dflashctl_remote.spec.objective import ObjectiveSpec


def row_loss(rows: Rows, head_VE: Tensor, objective: ObjectiveSpec) -> RowLosses:
    """-log softmax(states @ head.T)[label] of each row, nats."""
    found = linear_cross_entropy(rows.states_RD, head_VE, rows.labels_R, chunk_rows=objective.loss_chunk_rows)
    return RowLosses(found.cross_entropy_R, found.cross_entropy_R.detach(), found.top1_R)
