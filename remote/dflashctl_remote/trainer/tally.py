"""What one optimizer step adds up over its batches, and the rates that follow. Real tokens only: padding is no work
that anyone asked for.
"""

import resource
import sys

import torch

from dflashctl_remote.data.pack import PackedRow
from dflashctl_remote.drafter.anchors import Anchors
from dflashctl_remote.drafter.step import StepSums
from dflashctl_remote.trainer.ranks import Ranks


class Tally:
    """Axis K: slots of a block. Sums stay on the device until `settle`, which reads them once."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.loss_sum = 0.0
        self.weight_sum = 0.0
        self.num_tokens = 0
        self.num_anchors = 0
        self._scored_K = torch.zeros(block_size, dtype=torch.int64)
        self._correct_K = torch.zeros(block_size, dtype=torch.int64)
        self._waiting: StepSums | None = None

    def see(self, row: PackedRow, anchors: Anchors) -> None:
        """What of a batch is known before its loss."""
        self.num_tokens += sum(row.lengths)
        self.num_anchors += anchors.num_real

    def add(self, sums: StepSums) -> None:
        """In the order of the batches. Sums of another device are brought to the first one's."""
        if self._waiting is None:
            self._waiting = sums
        else:
            self._waiting = self._waiting + StepSums(sums.packed.to(self._waiting.packed.device))

    def settle(self, ranks: Ranks) -> None:
        """Read what was added, with that of all processes; waits for the device."""
        assert self._waiting is not None
        mine = torch.tensor([self.num_tokens, self.num_anchors], dtype=torch.float64)
        packed = self._waiting.packed
        sums = ranks.add(torch.cat((mine.to(packed.device), packed)))
        self.num_tokens, self.num_anchors = (int(count) for count in sums[:2].tolist())
        totals = StepSums(sums[2:]).read()
        self.loss_sum, self.weight_sum = totals.loss_sum, totals.weight_sum
        self._scored_K = torch.tensor(totals.scored_by_slot_K)
        self._correct_K = torch.tensor(totals.correct_by_slot_K)
        self._waiting = None

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
