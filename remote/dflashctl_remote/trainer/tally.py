"""What one optimizer step adds up over its batches, and the rates that follow. Real tokens only: padding is no work
that anyone asked for.
"""

import resource
import sys

import torch

from dflashctl_remote.data.pack import PackedRow
from dflashctl_remote.drafter.anchors import Anchors
from dflashctl_remote.drafter.objective import StepLoss


class Tally:
    """Axis K: slots of a block."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.loss_sum = 0.0
        self.weight_sum = 0.0
        self.num_tokens = 0
        self.num_anchors = 0
        self._scored_K = torch.zeros(block_size, dtype=torch.int64)
        self._correct_K = torch.zeros(block_size, dtype=torch.int64)

    def add(self, row: PackedRow, anchors: Anchors, loss: StepLoss) -> None:
        self.loss_sum += loss.loss_sum.item()
        self.weight_sum += loss.weight_sum
        self.num_tokens += sum(row.lengths)
        self.num_anchors += anchors.num_real
        self._scored_K += loss.scored_by_slot_K.cpu()
        self._correct_K += loss.correct_by_slot_K.cpu()

    @property
    def loss(self) -> float:
        """Mean over weights: sum(w * ce) / sum(w), nats."""
        return self.loss_sum / self.weight_sum

    @property
    def num_scored(self) -> int:
        return int(self._scored_K.sum())

    @property
    def accuracy(self) -> float:
        return int(self._correct_K.sum()) / max(1, self.num_scored)

    @property
    def accuracy_by_slot(self) -> tuple[float, ...]:
        """Slots 1..K-1; 0 where none was scored."""
        return tuple((self._correct_K[1:].double() / self._scored_K[1:].clamp(min=1)).tolist())

    @property
    def block_ratio(self) -> float:
        """r: block tokens per context token, as it came out."""
        return self.num_anchors * self._block_size / self.num_tokens


def peak_memory_bytes(device: torch.device) -> int:
    """Since the process began: of the GPU's allocator, or the resident set on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
