"""How fast the target's forward pass is: `python scripts/bench_train/target.py --tokens 8192 16384`, one GPU.

Arms, one after the other in every round: transformers with fla as it is, on sequences of 2048 that need no packing;
ours on the same documents and on documents of lognormal lengths in one row; ours without compilation. Weights are
random, in the shape of Qwen3.6-27B (64 layers, 54 GB in bfloat16; --layers takes fewer). `--tiny` runs on a CPU.
Before anything is timed, packed documents are compared with transformers running each alone.

MFU: 2 FLOP a token for each weight of the layers, against the matrix product of 8192^3 as measured in the same run.
The table ends with the matrix products of all layers by themselves: what no forward pass in bfloat16 beats.
"""

import argparse
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "remote"), str(Path(__file__).resolve().parent)]

from target_case import (  # noqa: E402
    QWEN36_27B,
    TINY,
    Floor,
    Row,
    equal_row,
    first_layers,
    lognormal_row,
    make_decoder,
    matmul_ceiling,
    products_alone,
    settle,
    taps_of,
    timed,
)

from dflashctl_remote.target.packed import Walk, packed_forward  # noqa: E402
from dflashctl_remote.target.taps import batch_states  # noqa: E402

CHECKED_LAYERS = 4
"""After so many layers the noise of bfloat16 is still small; after all of them it is told and not judged."""


@dataclass(frozen=True)
class Measured:
    arm: str
    num_tokens: int
    """Without padding."""
    first_s: float
    step_s: float
    tokens_per_s: int
    mfu: float
    peak_gib: float
    ratio: float
    """To transformers with fla on as many tokens."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 16384])
    parser.add_argument("--layers", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--no-check", action="store_true", help="time without comparing documents first")
    parser.add_argument("--profile", action="store_true", help="the kernels of one forward pass, and no arms")
    parser.add_argument("--json", action="store_true", help="a line of JSON for every figure too")
    options = parser.parse_args()
    device = torch.device("cpu" if options.tiny else "cuda")
    if options.tiny:
        options.layers, options.tokens = min(options.layers, CHECKED_LAYERS), [512]
    started = time.perf_counter()
    decoder = make_decoder(TINY if options.tiny else QWEN36_27B, options.layers, device)
    ceiling = matmul_ceiling(device)
    say(f"{options.layers} layers, {describe(device)}; 8192^3 at {ceiling / 1e12:.0f} TFLOP/s")
    if options.profile:
        profile(decoder, options.tokens[0], device)
        return 0
    good = compilations(device) if options.no_check else check(decoder, options.tokens[0], device)
    measured = [m for n in options.tokens for m in compare(decoder, n, good, device, options.rounds, ceiling)]
    floors = {num_tokens: products_alone(decoder, num_tokens, device) for num_tokens in options.tokens}
    if options.json:
        for figure in measured:
            say(json.dumps(asdict(figure)))
    report(measured, floors)
    say(f"{time.perf_counter() - started:.0f} s in all")
    return 0 if good == compilations(device) else 1


@torch.no_grad()
def check(decoder: Any, num_rows: int, device: torch.device) -> tuple[bool, ...]:
    """Tell how far each way of running documents is from the same arithmetic in fp32, after the first layers.

    Gives those of ours, compiled or not, that ran and are as near to it, but for a third, as transformers with each
    document alone: the noise of the dtype. The others are not timed.
    """
    lengths = (137, 450, 290) if device.type == "cuda" else (37, 70, 65)
    layers = (min(CHECKED_LAYERS, len(decoder.layers)) - 1,)
    ids_T = np.random.default_rng(2).integers(0, decoder.config.vocab_size, num_rows)
    row = Row(ids_T, lengths)
    ids_1T = torch.from_numpy(ids_T)[None, : sum(lengths)].to(device)
    positions_1T = torch.cat([torch.arange(length) for length in lengths])[None].to(device)
    shorter = Row(ids_T[: sum(lengths)], lengths)
    exact = packed_forward(
        Walk.of(first_layers(decoder, layers[0] + 1), is_compiled=False), shorter, layers, torch.device("cpu")
    ).taps_TF.split(lengths)

    def tell(name: str, taps_TF: Tensor) -> float:
        errors = distances(taps_TF.cpu(), list(exact))
        told = " ".join(f"{error:.2g}" for error in errors)
        say(f"{name}: distance from fp32 after layer {layers[0]}, by document: {told}")
        return max(errors)

    alone = [batch_states(decoder, ids, layers, use_cache=False)[0][0] for ids in ids_1T.split(lengths, dim=1)]
    noise = tell("transformers, each document alone", torch.cat(alone))
    taps_1TF, _ = batch_states(decoder, ids_1T, layers, position_ids=positions_1T, use_cache=False)
    tell("transformers, packed", taps_1TF[0])
    good = []
    for is_compiled in compilations(device):
        try:
            states = packed_forward(Walk.of(decoder, is_compiled=is_compiled), row, layers, device)
        except (RuntimeError, TypeError, ValueError, AttributeError, ImportError):
            say(f"{label(is_compiled)} does not run:\n{traceback.format_exc()[-3000:]}")
            continue
        error = tell(f"{label(is_compiled)}, packed", states.taps_TF)
        if error < (4 / 3 * noise if device.type == "cuda" else 1e-4):
            good.append(is_compiled)
        else:
            say(f"{label(is_compiled)} is off by {error:.2g} and is not timed")
    return tuple(good)


def distances(packed: Tensor, alone: list[Tensor]) -> list[float]:
    """Relative L2 distance by document."""
    lengths = [len(part) for part in alone]
    parts = packed[: sum(lengths)].split(lengths)
    pairs = [(got.double(), want.double()) for got, want in zip(parts, alone, strict=True)]
    return [float((got - want).norm() / want.norm()) for got, want in pairs]


def compilations(device: torch.device) -> tuple[bool, ...]:
    return (True, False) if device.type == "cuda" else (False,)


def label(is_compiled: bool) -> str:
    return "ours" if is_compiled else "ours, not compiled"


def compare(
    decoder: Any, num_tokens: int, good: tuple[bool, ...], device: torch.device, num_rounds: int, ceiling: float
) -> list[Measured]:
    """All arms in turn, so that what heats or cools the GPU meets all of them; medians of the rounds."""
    arms = arms_of(decoder, num_tokens, good, device)
    seconds = {arm: [timed(run, device)] for arm, (_, run) in arms.items()}
    peaks: dict[str, float] = {}
    for _ in range(num_rounds):
        for arm, (_, run) in arms.items():
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            seconds[arm].append(timed(run, device))
            peaks[arm] = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
    steps = {arm: statistics.median(seconds[arm][1:]) for arm in arms}
    rates = {arm: num_real / steps[arm] for arm, (num_real, _) in arms.items()}
    num_weights = sum(weight.numel() for weight in decoder.layers.parameters())
    return [
        Measured(
            arm=arm,
            num_tokens=num_real,
            first_s=round(seconds[arm][0], 1),
            step_s=round(steps[arm], 4),
            tokens_per_s=round(rates[arm]),
            mfu=round(2 * num_weights * rates[arm] / ceiling, 3),
            peak_gib=round(peaks[arm], 1),
            ratio=round(rates[arm] / rates[next(iter(arms))], 3),
        )
        for arm, (num_real, _) in arms.items()
    ]


def arms_of(
    decoder: Any, num_tokens: int, good: tuple[bool, ...], device: torch.device
) -> dict[str, tuple[int, Callable[[], Any]]]:
    """By name: tokens without padding, and a forward pass. Transformers comes first."""
    equal = equal_row(num_tokens, decoder.config.vocab_size, device)
    mixed = lognormal_row(num_tokens, decoder.config.vocab_size, device)
    ids_BT = torch.from_numpy(equal.input_ids_T).view(-1, equal.lengths[0]).to(device)
    taps = taps_of(decoder)

    @torch.inference_mode()
    def transformers() -> Any:
        return decoder(input_ids=ids_BT, use_cache=False)

    def ours(row: Row, is_compiled: bool) -> Callable[[], Any]:
        walk = Walk.of(decoder, is_compiled=is_compiled)
        return lambda: packed_forward(walk, row, taps, device)

    shape = f"{len(equal.lengths)} of {equal.lengths[0]}"
    arms: dict[str, tuple[int, Callable[[], Any]]] = {f"transformers, {shape}": (num_tokens, transformers)}
    for is_compiled in good:
        name = label(is_compiled)
        arms[f"{name}, {shape}"] = (num_tokens, ours(equal, is_compiled))
        arms[f"{name}, {len(mixed.lengths)} lognormal"] = (sum(mixed.lengths), ours(mixed, is_compiled))
    return arms


def profile(decoder: Any, num_tokens: int, device: torch.device) -> None:
    """The 25 kernels (on a CPU: operators) in which one forward pass of ours spends most."""
    row = lognormal_row(num_tokens, decoder.config.vocab_size, device)
    walk, taps = Walk.of(decoder, is_compiled=device.type == "cuda"), taps_of(decoder)
    for _ in range(4):
        step_s = timed(lambda: packed_forward(walk, row, taps, device), device)
    activity = torch.profiler.ProfilerActivity
    kind, unit = (activity.CUDA, "cuda") if device.type == "cuda" else (activity.CPU, "cpu")
    with torch.profiler.profile(activities=[kind]) as profiled:
        packed_forward(walk, row, taps, device)
        settle(device)
    say(profiled.key_averages().table(sort_by=f"self_{unit}_time_total", row_limit=25, max_name_column_width=90))
    say(f"{sum(row.lengths)} of {num_tokens} tokens, {step_s * 1e3:.0f} ms without the profiler")


def describe(device: torch.device) -> str:
    if device.type == "cpu":
        return f"CPU, torch {torch.__version__}"
    import fla
    import triton

    name = torch.cuda.get_device_name()
    return f"{name}, torch {torch.__version__}, triton {triton.__version__}, fla {fla.__version__}"


def report(measured: list[Measured], floors: dict[int, Floor]) -> None:
    say("\n| arm | tokens | first s | step ms | tokens/s | MFU | peak GiB | ratio |\n|---|---|---|---|---|---|---|---|")
    for m in measured:
        figures = (m.num_tokens, m.first_s, round(1e3 * m.step_s), m.tokens_per_s, m.mfu, m.peak_gib, m.ratio)
        say(f"| {m.arm} | " + " | ".join(map(str, figures)) + " |")
    for num_tokens, floor in floors.items():
        say(f"| matrix products alone | {num_tokens} | | | {floor.tokens_per_s:.0f} | | | |")
    for num_tokens, floor in floors.items():
        say(f"{num_tokens} tokens: residuals added inside products change their time by {floor.residual_share:+.1%}")


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
