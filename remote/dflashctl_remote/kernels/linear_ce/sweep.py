"""Which constants suit a GPU: python -m dflashctl_remote.kernels.linear_ce.sweep, about a minute, prints a table.

Not part of training, where nothing is tuned; what it finds goes into RowTuning, CHUNK_ROWS and NUM_SPLITS by hand.
"""

from collections.abc import Callable, Iterator
from itertools import product

import torch

from dflashctl_remote.kernels.common.rows import RowTuning
from dflashctl_remote.kernels.common.timing import Way, time_ways
from dflashctl_remote.kernels.linear_ce.bench import ROWS, VOCAB, WIDTH
from dflashctl_remote.kernels.linear_ce.chunk import times_head
from dflashctl_remote.kernels.linear_ce.op import linear_cross_entropy

CHUNKS = (1536, 1664, 1920, 2048, 2432)
SPLITS = (1, 2, 4)
TUNINGS = tuple(
    RowTuning(*constants)
    for constants in (
        (4096, 8, 1),
        (4096, 8, 3),
        (4096, 16, 1),
        (4096, 32, 3),
        (8192, 16, 1),
        (8192, 16, 3),
        (8192, 32, 1),
        (8192, 32, 2),
        (8192, 32, 3),
        (8192, 32, 4),
        (2048, 8, 3),
        (16384, 32, 1),
    )
)


class Sweep:
    """The tensors of the real shape, and the best of each part as it is found."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.states = torch.randn(ROWS, WIDTH, device=device, dtype=torch.bfloat16).requires_grad_()
        self.head = torch.randn(VOCAB, WIDTH, device=device, dtype=torch.bfloat16) * 0.02
        self.labels = torch.randint(0, VOCAB, (ROWS,), device=device)
        self.weights = torch.rand(ROWS, device=device)

    def products(self) -> Iterator[tuple[str, float]]:
        """ms of each product over all rows, by rows a chunk and splits."""
        states, head = self.states.detach(), self.head
        logits = head.new_empty(max(CHUNKS), VOCAB)
        grad = torch.empty_like(states)
        for chunk in CHUNKS:

            def first(chunk: int = chunk) -> None:
                for part in states.split(chunk):
                    torch.mm(part, head.T, out=logits[: len(part)])

            yield f"first product, {chunk} rows a chunk", self._median(first)
            for splits in SPLITS:

                def second(chunk: int = chunk, splits: int = splits) -> None:
                    for part in grad.split(chunk):
                        times_head(logits[: len(part)], head, part, splits)

                yield f"second product, {chunk} rows a chunk, {splits} splits", self._median(second)

    def rows(self) -> Iterator[tuple[RowTuning, float]]:
        """ms of the row pass over all rows, scaled from one chunk of 2048."""
        from dflashctl_remote.kernels.linear_ce.kernel import row_pass

        states, labels, weights = self.states.detach()[:2048], self.labels[:2048], self.weights[:2048]
        found = torch.empty(2048, device=self.device), torch.empty(2048, device=self.device, dtype=torch.int64)
        logits = self.head.new_empty(2048, VOCAB)
        for tuning in TUNINGS:
            times = []
            for _ in range(6):
                # Anew each time: the pass leaves probabilities, whose ties would be another measurement.
                torch.mm(states, self.head.T, out=logits)
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record()
                row_pass(logits, states, self.head, labels, weights, *found, wants_grad=True, tuning=tuning)
                end.record()
                end.synchronize()
                times.append(begin.elapsed_time(end) * ROWS / 2048)
            yield tuning, sorted(times[1:])[2]

    def whole(self, tunings: list[RowTuning]) -> Iterator[str]:
        def way(chunk: int, splits: int, tuning: RowTuning) -> Way:
            def run() -> object:
                out = linear_cross_entropy(
                    self.states,
                    self.head,
                    self.labels,
                    self.weights,
                    chunk_rows=chunk,
                    tuning=tuning,
                    num_splits=splits,
                )
                return torch.autograd.grad(out.loss_sum, self.states)

            return Way(f"{chunk} rows, {splits} splits, {_named(tuning)}", "ours", run)

        states, head = self.states.detach(), self.head
        ways = [Way("two matrix products", "floor", lambda: (states @ head.T) @ head)]
        ways += [way(*constants) for constants in product(CHUNKS, (1, 2), tunings)]
        arms = time_ways(ways, self.device, num_rounds=2)
        floor = arms[0].median_ms
        for arm in sorted(arms, key=lambda arm: arm.median_ms or float("inf")):
            if arm.median_ms and floor and arm.extra_bytes is not None:
                ratio, memory = arm.median_ms / floor, arm.extra_bytes / 2**30
                yield f"{arm.name:<60} {arm.median_ms:8.2f} ms {ratio:6.3f} x floor {memory:6.2f} GiB"

    def _median(self, run: Callable[[], object]) -> float:
        (arm,) = time_ways((Way("", "other", run),), self.device, num_rounds=2)
        return arm.median_ms or float("nan")


def main() -> None:
    sweep = Sweep(torch.device("cuda"))
    for name, median_ms in sweep.products():
        print(f"{name:<60} {median_ms:8.2f} ms", flush=True)
    found = sorted(sweep.rows(), key=lambda pair: pair[1])
    for tuning, median_ms in found:
        print(f"row pass, {_named(tuning):<50} {median_ms:8.2f} ms", flush=True)
    for line in sweep.whole([tuning for tuning, _ in found[:2]]):
        print(line, flush=True)


def _named(tuning: RowTuning) -> str:
    return f"block {tuning.block}, {tuning.num_warps} warps, {tuning.num_stages} stages"


if __name__ == "__main__":
    main()
