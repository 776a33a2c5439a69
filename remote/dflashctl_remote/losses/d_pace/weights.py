"""Weights from the drafter's own confidence, D-PACE: see README.md."""

import torch

from dflashctl_remote.losses.base import RowLosses, Rows, RowWeights, from_grid, to_grid
from dflashctl_remote.spec.objective import ObjectiveSpec

DEFAULT_ALPHA = 0.5


def row_weights(rows: Rows, losses: RowLosses, objective: ObjectiveSpec) -> RowWeights:
    """Sum over m >= k of prod over i <= m of ((1-alpha) * exp(-ce_i) + alpha), in each block; divided by the blocks.

    Source: arXiv 2605.18810, equations 7 to 9, algorithm 1.
    """
    alpha = objective.d_pace_alpha or DEFAULT_ALPHA
    smooth_R = (1 - alpha) * torch.exp(-losses.cross_entropy_R) + alpha
    is_row_NK = to_grid(rows, torch.ones_like(smooth_R), 0.0)
    reach_NK = to_grid(rows, smooth_R, 1.0).cumprod(dim=1) * is_row_NK
    weights_R = from_grid(rows, reach_NK.flip(1).cumsum(dim=1).flip(1))
    return RowWeights(weights_R, is_row_NK[:, 1:].amax(dim=1).double().sum())
