"""Weights that fall with the slot: see README.md."""

import torch
from torch import Tensor

from dflashctl_remote.losses.base import RowLosses, Rows, RowWeights
from dflashctl_remote.spec.drafter import default_gamma
from dflashctl_remote.spec.objective import ObjectiveSpec


def row_weights(rows: Rows, losses: RowLosses, objective: ObjectiveSpec) -> RowWeights:
    """exp(-(k-1)/gamma) of each row; divided by their sum."""
    weights_R = decay_of(rows, objective)
    return RowWeights(weights_R, weights_R.double().sum())


def decay_of(rows: Rows, objective: ObjectiveSpec) -> Tensor:
    """exp(-(k-1)/gamma): float32 [R]. gamma None: `default_gamma` of the block size."""
    gamma = objective.gamma or default_gamma(rows.block_size)
    slots_K = torch.arange(rows.block_size, dtype=torch.float64, device=rows.slots_R.device)
    return torch.exp(-(slots_K - 1) / gamma).float()[rows.slots_R]
