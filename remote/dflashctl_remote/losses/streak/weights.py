"""Weights that grow while the block is right so far: see README.md."""

from dflashctl_remote.losses.base import RowLosses, Rows, RowWeights, prefix_is_right
from dflashctl_remote.losses.decay.weights import decay_of
from dflashctl_remote.spec.objective import ObjectiveSpec

DEFAULT_ALPHA = 1.0


def row_weights(rows: Rows, losses: RowLosses, objective: ObjectiveSpec) -> RowWeights:
    """exp(-(k-1)/gamma) * (1 + alpha * [all slots before k are right]) of each row; divided by their sum."""
    alpha = DEFAULT_ALPHA if objective.streak_alpha is None else objective.streak_alpha
    before_R, _ = prefix_is_right(rows, losses.top1_R)
    weights_R = decay_of(rows, objective) * (1 + alpha * before_R)
    return RowWeights(weights_R, weights_R.double().sum())
