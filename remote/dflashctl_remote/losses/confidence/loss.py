"""Binary cross-entropy of the confidence head: see README.md."""

from torch import Tensor
from torch.nn import functional as F

from dflashctl_remote.losses.base import Rows, prefix_is_right
from dflashctl_remote.losses.confidence.head import ConfidenceHead
from dflashctl_remote.losses.decay.weights import decay_of
from dflashctl_remote.spec.objective import ObjectiveSpec


def confidence_sum(rows: Rows, top1_R: Tensor, head: ConfidenceHead, objective: ObjectiveSpec) -> Tensor:
    """Sum over rows of exp(-(k-1)/gamma) * BCE(log odds, [this slot and all before it are right]): fp32 scalar.

    The weights depend on the slot alone whatever weighting the loss has, so that the head stays calibrated.
    """
    _, upto_R = prefix_is_right(rows, top1_R)
    bce_R = F.binary_cross_entropy_with_logits(head(rows.states_RD), upto_R.float(), reduction="none")
    return (decay_of(rows, objective) * bce_R).sum()
