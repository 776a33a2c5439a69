"""The truth in fp64, all logits at once; for tests and checks alone. Axes: R rows, D = E width, V vocabulary."""

import torch
from torch import Tensor


@torch.no_grad()
def reference(states_RD: Tensor, head_VE: Tensor) -> Tensor:
    """Logits [R, V] in fp64; the label of a row is their arg-max, the lowest id on ties."""
    return states_RD.double() @ head_VE.double().T
