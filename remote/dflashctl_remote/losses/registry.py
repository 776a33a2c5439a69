"""Which losses and weightings there are, and one call that puts the chosen ones together.

Another one is a folder beside these with README.md and code, its line here, and its name in spec/objective.py, where
run.yaml is checked without torch.
"""

from torch import Tensor

from dflashctl_remote.losses.base import RowLoss, Rows, RowTerms, Weighting
from dflashctl_remote.losses.confidence.head import ConfidenceHead
from dflashctl_remote.losses.confidence.loss import confidence_sum
from dflashctl_remote.losses.d_pace import weights as d_pace
from dflashctl_remote.losses.decay import weights as decay
from dflashctl_remote.losses.hard_ce import loss as hard_ce
from dflashctl_remote.losses.soft_kl import loss as soft_kl
from dflashctl_remote.losses.streak import weights as streak
from dflashctl_remote.spec.objective import LossName, ObjectiveSpec, WeightingName

__all__ = ["LOSSES", "NEED_FINAL", "WEIGHTINGS", "RowTerms", "needs_final", "row_terms"]

LOSSES: dict[LossName, RowLoss] = {
    "hard_ce": hard_ce.row_loss,
    "soft_kl": soft_kl.row_loss,
}
WEIGHTINGS: dict[WeightingName, Weighting] = {
    "decay": decay.row_weights,
    "d_pace": d_pace.row_weights,
    "streak": streak.row_weights,
}
NEED_FINAL: frozenset[LossName] = frozenset({"soft_kl"})
"""Losses that read the target's final states, which are moved and kept for these alone."""


def needs_final(objective: ObjectiveSpec) -> bool:
    """Whether `Rows.final_RE` must be given."""
    return objective.loss in NEED_FINAL


def row_terms(
    rows: Rows, head_VE: Tensor, objective: ObjectiveSpec, *, confidence: ConfidenceHead | None = None
) -> RowTerms:
    """The chosen loss under the chosen weighting, and the confidence head's part where there is one.

    Groups of whole blocks may be summed in any order; no gradient reaches the weights or `head_VE`.
    """
    assert (confidence is not None) == (objective.confidence_weight > 0), "the head goes with its weight"
    losses = LOSSES[objective.loss](rows, head_VE, objective)
    weights = WEIGHTINGS[objective.weighting](rows, losses, objective)
    loss_sum = (weights.weights_R * losses.loss_R).sum()
    if confidence is not None:
        loss_sum = loss_sum + objective.confidence_weight * confidence_sum(rows, losses.top1_R, confidence, objective)
    return RowTerms(loss_sum, weights.total, losses.cross_entropy_R, losses.top1_R)
