"""Which batch goes where, whatever the threads' timing: pure, and the same for one batch in flight and for many.

A batch's number decides everything: its row, anchors, noise, its process and its drafter. An optimizer step takes
`accumulation` batches in a row; every process and every drafter works on its own of them in rising order, and the
sums are added in the order of the drafters.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Order:
    accumulation: int
    """Batches of an optimizer step, over all processes and drafters."""
    num_drafters: int = 1
    """In one process."""
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        # TrainSpec has refused it in a sentence.
        assert self.accumulation % (self.world_size * self.num_drafters) == 0, f"{self} shares no step out evenly"

    def batches_of_step(self, first_batch: int) -> range:
        """Of this process, in the step that begins with `first_batch`."""
        assert first_batch % self.accumulation == 0, f"no step begins with batch {first_batch}"
        return range(first_batch + self.rank, first_batch + self.accumulation, self.world_size)

    def batches_from(self, first_batch: int) -> Iterator[int]:
        """Of this process, endless."""
        while True:
            yield from self.batches_of_step(first_batch)
            first_batch += self.accumulation

    def drafter_of(self, batch: int) -> int:
        """Which of the process's drafters takes a batch of this process."""
        return (batch // self.world_size) % self.num_drafters
