"""The truth in fp64, all logits at once; for tests and checks alone.

Axes: R rows, D = E width, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Reference:
    cross_entropy_R: Tensor
    unit_grad_RD: Tensor
    """Of each row's cross-entropy by its state; the gradient of the weighted sum is weights[:, None] times this."""
    top1_R: Tensor
    logits_RV: Tensor


@torch.no_grad()
def reference(states_RD: Tensor, head_VE: Tensor, labels_R: Tensor) -> Reference:
    states, head = states_RD.double(), head_VE.double()
    logits = states @ head.T
    rows = torch.arange(len(labels_R), device=labels_R.device)
    log_total = torch.logsumexp(logits, dim=-1)
    error = torch.exp(logits - log_total[:, None])
    error[rows, labels_R] -= 1
    return Reference(log_total - logits[rows, labels_R], error @ head, logits.argmax(dim=-1), logits)
