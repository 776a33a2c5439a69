"""Which constants suit a GPU: python -m dflashctl_remote.kernels.anchor_attention.sweep prints a table.

About two minutes. Not part of training, where nothing is tuned; what it finds goes into `Tuning` by hand. Each kernel
is timed alone.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from dflashctl_remote.kernels.anchor_attention import triton_op
from dflashctl_remote.kernels.anchor_attention.bench import HEADS, KV_HEADS, apart, group, run_triton, tflop
from dflashctl_remote.kernels.anchor_attention.ranges import PassTuning, Ranges, Tuning, make_ranges
from dflashctl_remote.kernels.common.timing import Way, time_ways

FORWARD = (
    PassTuning(128, 8, 2),
    PassTuning(64, 8, 2),
    PassTuning(64, 8, 3),
    PassTuning(64, 8, 4),
    PassTuning(64, 4, 2, rows=64),
    PassTuning(64, 4, 3, rows=64),
    PassTuning(128, 4, 2, rows=64),
)
QUERIES = (
    PassTuning(64, 8, 2),
    PassTuning(64, 8, 3),
    PassTuning(32, 8, 3),
    PassTuning(64, 4, 2, rows=64),
    PassTuning(64, 4, 3, rows=64),
    PassTuning(32, 4, 2, rows=64),
    PassTuning(32, 4, 3, rows=64),
)
CONTEXT = (
    PassTuning(128, 8, 2),
    PassTuning(128, 8, 3),
    PassTuning(64, 8, 3),
    PassTuning(64, 4, 2),
    PassTuning(64, 4, 3),
)


class Sweep:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.visible = group(device)
        self.tensors = apart(self.visible, device)
        self.mixed = self._forward(self._ranges(Tuning()))
        ranges = self._ranges(Tuning())
        rows = (KV_HEADS, len(self.visible.anchors_N), ranges.heads * ranges.slots)
        # Times do not depend on the values.
        self.lse, self.delta = (torch.full(rows, 8.0, device=device) for _ in range(2))

    def passes(self) -> Iterator[tuple[str, PassTuning, float | None, int]]:
        """(kernel, constants, ms, how many products of the forward pass's size it makes)."""
        for constants in FORWARD:
            yield "forward", constants, self._ms(self._forward, Tuning(forward=constants)), 2
        for constants in QUERIES:
            yield "queries", constants, self._ms(self._queries, Tuning(queries=constants)), 3
        for constants in CONTEXT:
            yield "context", constants, self._ms(self._context, Tuning(context=constants)), 4

    def whole(self, tunings: list[Tuning]) -> Iterator[tuple[Tuning, float | None]]:
        for tuning in tunings:
            yield tuning, self._ms(lambda ranges: run_triton(self.tensors, ranges), tuning)

    def tflop_of(self, num_products: int) -> float:
        return tflop(self.visible) / 2 * num_products

    @torch.no_grad()
    def _forward(self, ranges: Ranges) -> Tensor:
        query, key, value, own_key, own_value, _ = self.tensors
        return triton_op.anchor_attention(query, key, value, own_key, own_value, ranges)

    def _queries(self, ranges: Ranges) -> object:
        query, key, value, own_key, own_value, back = self.tensors
        return triton_op.query_backward(
            ranges, query, key, value, own_key, own_value, self.mixed, back, self.lse, self.delta
        )

    def _context(self, ranges: Ranges) -> object:
        query, key, value, _, _, back = self.tensors
        return triton_op.context_backward(ranges, query, key, value, back, self.lse, self.delta)

    def _ranges(self, tuning: Tuning) -> Ranges:
        return make_ranges(self.visible, HEADS // KV_HEADS, tuning)

    def _ms(self, run: Callable[[Ranges], object], tuning: Tuning) -> float | None:
        """None where the constants ask for more than the GPU has."""
        ranges = self._ranges(tuning)
        try:
            (arm,) = time_ways((Way("", "ours", lambda: run(ranges)),), self.device, num_rounds=4)
        except OutOfResources:
            return None
        return arm.median_ms


def main() -> None:
    found = best_of(Sweep(torch.device("cuda")))
    print(f"fastest: {found}")


def best_of(sweep: Sweep) -> Tuning:
    """Prints what it times as it goes."""
    best: dict[str, tuple[float, PassTuning]] = {}
    for kernel, constants, ms, num_products in sweep.passes():
        rate = "does not fit" if ms is None else f"{ms:8.3f} ms {sweep.tflop_of(num_products) / ms * 1e3:7.0f} TFLOP/s"
        print(f"{kernel:<8} {_named(constants):<48} {rate}", flush=True)
        if ms is not None and (kernel not in best or ms < best[kernel][0]):
            best[kernel] = (ms, constants)
    found = Tuning(**{kernel: constants for kernel, (_, constants) in best.items()})
    for tuning, ms in sweep.whole([Tuning(), found]):
        print(f"whole, forward and backward: {ms or float('nan'):8.3f} ms  {tuning}", flush=True)
    return found


def _named(constants: PassTuning) -> str:
    return f"{constants.rows} rows, {constants.keys} keys, {constants.num_warps} warps, {constants.num_stages} stages"


if __name__ == "__main__":
    main()
