"""A batch on its way through the stages: first a row with its anchors, then with the target's states."""

from dataclasses import dataclass

from torch import Tensor

from dflashctl_remote.data.pack import PackedRow
from dflashctl_remote.drafter.anchors import Anchors
from dflashctl_remote.drafter.scored import Scored


@dataclass(frozen=True)
class RowBatch:
    """What the loader makes: a function of (dataset, seed, batch)."""

    place: int
    """Counts from 0 in this process since it began: the order in which batches leave the line."""
    batch: int
    """Number in the run, over all processes."""
    epoch: float
    """Once this batch is done."""
    row: PackedRow
    anchors: Anchors


@dataclass(frozen=True)
class HiddenBatch:
    """What a target stage makes of it. Axes: T context tokens, F tapped states of a token."""

    place: int
    batch: int
    epoch: float
    row: PackedRow
    anchors: Anchors
    taps_TF: Tensor
    """Clean; noise is the drafter's own."""
    scored: Scored
