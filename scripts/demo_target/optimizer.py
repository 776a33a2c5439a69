"""Muon for the matrices inside layers, AdamW for embeddings, norms, convolutions and decays."""

from __future__ import annotations

import torch
from torch import nn


class MuonAdamW:
    """Two optimizers that step as one; `set_lr` takes the rate of both."""

    def __init__(self, model: nn.Module, lr: float, weight_decay: float) -> None:
        matrices: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, parameter in model.named_parameters():
            is_matrix = parameter.ndim == 2 and "embed" not in name and "lm_head" not in name
            (matrices if is_matrix else others).append(parameter)
        self.parts: list[torch.optim.Optimizer] = [
            # match_rms_adamw scales the orthogonal update to AdamW's usual size, so one rate serves both.
            torch.optim.Muon(matrices, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.95), weight_decay=0.0),
        ]

    def set_lr(self, lr: float) -> None:
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = lr

    def step(self) -> None:
        for part in self.parts:
            part.step()
            part.zero_grad(set_to_none=True)
