"""Which constants suit a GPU: python -m dflashctl_remote.kernels.anchor_attention.sweep prints a table.

About two minutes. Not part of training, where nothing is tuned; what it finds goes into `Tuning` by hand. Each kernel
is timed alone.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from dflashctl_remote.kernels.anchor_attention import triton_op
from dflashctl_remote.kernels.anchor_attention.bench import HEADS, KV_HEADS, apart, group, run_triton, tflop
from dflashctl_remote.kernels.anchor_attention.ranges import PassTuning, Ranges, Tuning, make_ranges
from dflashctl_remote.kernels.common.timing import Way, time_ways

FORWARD = ((128, 8, 2), (64, 8, 2), (64, 8, 3), (64, 8, 4), (64, 4, 2), (64, 4, 3), (128, 4, 2))
QUERIES = ((64, 8, 2), (64, 8, 3), (64, 4, 2), (64, 4, 3), (128, 8, 2), (32, 8, 3), (32, 4, 3))
CONTEXT = ((128, 8, 2), (128, 8, 3), (64, 8, 2), (64, 8, 3), (64, 4, 2), (64, 4, 3), (128, 4, 2))
"""(keys, warps, stages)."""


class Sweep:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.visible = group(device)
        self.tensors = apart(self.visible, device)
        self.mixed = self._forward(self._ranges(Tuning()))
        ranges = self._ranges(Tuning())
        rows = (KV_HEADS, self.visible.anchors_N.shape[0], ranges.heads * ranges.slots)
        # Times do not depend on the values.
        self.lse, self.delta = (torch.full(rows, 8.0, device=device) for _ in range(2))

    def passes(self) -> Iterator[tuple[str, Tuning, float | None, float]]:
        """(kernel, constants, ms, products of the forward pass's size that it makes)."""
        for rows in (128, 64):
            for constants in FORWARD:
                tuning = Tuning(rows=rows, forward=PassTuning(*constants))
                yield "forward", tuning, self._ms(self._forward, tuning), 2
            for constants in QUERIES:
                tuning = Tuning(rows=rows, queries=PassTuning(*constants))
                yield "queries", tuning, self._ms(self._queries, tuning), 3
        for constants in CONTEXT:
            tuning = Tuning(context=PassTuning(*constants))
            yield "context", tuning, self._ms(self._context, tuning), 4

    def whole(self, tunings: list[Tuning]) -> Iterator[tuple[Tuning, float | None]]:
        for tuning in tunings:
            yield tuning, self._ms(lambda ranges: run_triton(self.tensors, ranges), tuning)

    def tflop_of(self, num_products: float) -> float:
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
    sweep = Sweep(torch.device("cuda"))
    best: dict[tuple[str, int], tuple[float, Tuning]] = {}
    for kernel, tuning, ms, num_products in sweep.passes():
        constants = getattr(tuning, kernel)
        rate = "does not fit" if ms is None else f"{ms:8.3f} ms {sweep.tflop_of(num_products) / ms * 1e3:7.0f} TFLOP/s"
        print(f"{kernel:<8} {tuning.rows:>4} rows {_named(constants):<36} {rate}", flush=True)
        at = (kernel, tuning.rows)
        if ms is not None and (at not in best or ms < best[at][0]):
            best[at] = (ms, tuning)
    found = [_together(best, rows) for rows in (128, 64)]
    for tuning, ms in sweep.whole([Tuning(), *found]):
        print(f"whole, forward and backward: {ms or float('nan'):8.3f} ms  {tuning}", flush=True)


def _together(best: dict[tuple[str, int], tuple[float, Tuning]], rows: int) -> Tuning:
    """The fastest of each kernel for tiles of so many rows; the context's has no such tiles."""
    forward, queries, context = best["forward", rows][1], best["queries", rows][1], best["context", 128][1]
    return replace(forward, queries=queries.queries, context=context.context)


def _named(constants: PassTuning) -> str:
    return f"{constants.keys} keys, {constants.num_warps} warps, {constants.num_stages} stages"


if __name__ == "__main__":
    main()
