"""Every loss and weighting through the head, and context noise, at the real shapes on one GPU: time and memory.

    python scripts/bench_train/losses.py           prints a table last
    python scripts/bench_train/losses.py --tiny    the same code on a CPU, to see that it runs

A line of a loss is forward and backward of all rows. Noise of the GPU is compared with the CPU's, which must be equal.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2] / "remote"))

from dflashctl_remote.drafter.noise import ContextNoise, unit_noise
from dflashctl_remote.losses.base import Rows
from dflashctl_remote.losses.confidence.head import ConfidenceHead
from dflashctl_remote.losses.registry import needs_final, row_terms
from dflashctl_remote.spec.objective import NoiseName, ObjectiveSpec

TIMED = 7
NUM_TAPS, BLOCK_SIZE = 5, 16
NOISES: tuple[NoiseName, ...] = ("gaussian", "uniform")
OBJECTIVES = (
    ObjectiveSpec(),
    ObjectiveSpec(weighting="d_pace"),
    ObjectiveSpec(weighting="streak"),
    ObjectiveSpec(confidence_weight=0.1),
    ObjectiveSpec(loss="soft_kl"),
    ObjectiveSpec(loss="soft_kl", temperature=2.0, weighting="d_pace"),
)


@dataclass(frozen=True)
class Sizes:
    device: torch.device
    dtype: torch.dtype
    num_context: int
    width: int
    vocab: int
    num_blocks: int


REAL = Sizes(torch.device("cuda"), torch.bfloat16, 8192, 5120, 248320, 512)
TINY = Sizes(torch.device("cpu"), torch.float32, 64, 32, 101, 4)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    sizes = TINY if parser.parse_args().tiny else REAL
    is_same, noise = noise_lines(sizes)
    losses = loss_lines(sizes)
    name = torch.cuda.get_device_name() if sizes.device.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, median of {TIMED}; memory: peak above what was there before")
    print(f"noise on {sizes.num_context} x {NUM_TAPS * sizes.width}, {sizes.dtype}")
    print("\n".join(noise))
    print(f"losses of {sizes.num_blocks * (BLOCK_SIZE - 1)} rows x {sizes.width} x {sizes.vocab}")
    print("\n".join(losses))
    print(f"noise on the device {'equals' if is_same else 'DIFFERS FROM'} the CPU's")
    return 0 if is_same else 1


def noise_lines(sizes: Sizes) -> tuple[bool, list[str]]:
    width = NUM_TAPS * sizes.width
    taps_TF = torch.randn(sizes.num_context, width, device=sizes.device, dtype=sizes.dtype)
    is_same, lines = True, []
    for kind in NOISES:
        noise = ContextNoise(kind, 0.1, seed=1, sequence=2)
        lines.append(_line(f"noise, {kind}", sizes, lambda noise=noise: noise.added_to(taps_TF, NUM_TAPS)))
        here, there = (
            unit_noise(kind, 5, 50, width, seed=1, sequence=2, device=device).cpu()
            for device in (torch.device("cpu"), sizes.device)
        )
        is_same = is_same and torch.equal(here, there)
    lines.append(_line("torch.randn alone, fp32", sizes, lambda: torch.randn(taps_TF.shape, device=sizes.device)))
    return is_same, lines


def loss_lines(sizes: Sizes) -> list[str]:
    head_VE = _drawn(sizes, sizes.vocab, sizes.width) * sizes.width**-0.5
    confidence = ConfidenceHead(sizes.width).to(sizes.device, sizes.dtype)
    rows = _make_rows(sizes)
    lines = []
    for objective in OBJECTIVES:
        asked = rows if needs_final(objective) else Rows(**vars(rows) | {"final_RE": None})
        head = confidence if objective.confidence_weight > 0 else None

        def step(objective: ObjectiveSpec = objective, asked: Rows = asked, head: ConfidenceHead | None = head) -> None:
            row_terms(asked, head_VE, objective, confidence=head).loss_sum.backward()
            asked.states_RD.grad = None

        what = f"{objective.loss}, {objective.weighting}{', confidence' if head else ''}"
        lines.append(_line(what, sizes, step))
    return lines


def _make_rows(sizes: Sizes) -> Rows:
    slots = torch.arange(1, BLOCK_SIZE, device=sizes.device).repeat(sizes.num_blocks)
    return Rows(
        states_RD=_drawn(sizes, len(slots), sizes.width).requires_grad_(),
        final_RE=_drawn(sizes, len(slots), sizes.width),
        labels_R=torch.randint(0, sizes.vocab, (len(slots),), device=sizes.device),
        slots_R=slots,
        blocks_R=torch.arange(sizes.num_blocks, device=sizes.device).repeat_interleave(BLOCK_SIZE - 1),
        num_blocks=sizes.num_blocks,
        block_size=BLOCK_SIZE,
    )


def _drawn(sizes: Sizes, *shape: int) -> Tensor:
    return torch.randn(*shape, device=sizes.device, dtype=sizes.dtype)


def _line(what: str, sizes: Sizes, work: Callable[[], object]) -> str:
    on_gpu = sizes.device.type == "cuda"
    work()
    work()
    before = 0
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    times_ms = []
    for _ in range(TIMED):
        started_s = time.perf_counter()
        work()
        if on_gpu:
            torch.cuda.synchronize()
        times_ms.append(1e3 * (time.perf_counter() - started_s))
    extra = f"{(torch.cuda.max_memory_allocated() - before) / 2**30:7.2f} GiB" if on_gpu else ""
    return f"  {what:<28}{statistics.median(times_ms):9.1f} ms {extra}"


if __name__ == "__main__":
    sys.exit(main())
