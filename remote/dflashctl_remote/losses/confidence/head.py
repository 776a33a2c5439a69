"""A linear head that says how likely a block is right up to a slot. It is trained with the drafter and saved beside it,
out of the sight of engines: see README.md.
"""

from typing import cast

import torch
from torch import Tensor, nn

NAME = "confidence"


class ConfidenceHead(nn.Module):
    """Begins at zero: every slot is as likely right as not, and the drafter feels nothing of it yet."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, width))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, states_RD: Tensor) -> Tensor:
        """Log odds that a slot and all before it in its block agree with their labels: fp32 [R]."""
        return nn.functional.linear(states_RD.to(self.weight.dtype), self.weight, self.bias)[:, 0].float()


def add_confidence(drafter: nn.Module, width: int) -> ConfidenceHead:
    """Give a drafter a new head of its own device and dtype; its parameters are the drafter's from then on."""
    first = next(drafter.parameters())
    head = ConfidenceHead(width).to(device=first.device, dtype=first.dtype)
    drafter.add_module(NAME, head)
    return head


def confidence_of(drafter: nn.Module) -> ConfidenceHead | None:
    """A drafter's head, if it has one."""
    return cast("ConfidenceHead | None", dict(drafter.named_children()).get(NAME))
