"""The door to the products with the frozen head: cross-entropy, arg-max, and plain logits. Kernels do the work.

Axes: R rows, D = E width, V vocabulary.
"""

from torch import Tensor

from dflashctl_remote.kernels.common.rows import linear_logits
from dflashctl_remote.kernels.label_argmax.op import label_argmax
from dflashctl_remote.kernels.linear_ce.op import CHUNK_ROWS, LinearCE, linear_cross_entropy

__all__ = ["LinearCE", "linear_argmax", "linear_cross_entropy", "linear_logits"]


def linear_argmax(states_RD: Tensor, head_VE: Tensor, *, chunk_rows: int = CHUNK_ROWS) -> Tensor:
    """Arg-max over the vocabulary of states @ head.T as exact as fp32, lowest id on ties: int64 [R]."""
    return label_argmax(states_RD, head_VE, chunk_rows=chunk_rows)
