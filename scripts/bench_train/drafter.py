"""One drafter step, forward and backward, on one GPU: ours beside the `speculators` package at the same shapes.

    python scripts/bench_train/drafter.py                    both arms at r = 1 and r = 4; a table last
    python scripts/bench_train/drafter.py --arms ours --profile   the kernels of one step of ours
    python scripts/bench_train/drafter.py --tiny             the same code on a CPU, to see that it runs

Random weights of the real shapes, the same for both arms, as are documents (of 2048 tokens) and anchors; so the losses
must agree. Each arm is a process of its own; a case is 5 steps to warm up and 10 timed ones, its memory counted after
the warm-up. No optimizer. Ours is timed with labels given and with their product inside (the speculators step makes its
own). MFU counts useful work alone, by shapes: see `useful_flop` in drafter_case.py.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path[:0] = [str(Path(__file__).parents[2] / "remote"), str(Path(__file__).parent)]

from drafter_arms import ARMS  # noqa: E402
from drafter_case import make_case, make_config, useful_flop  # noqa: E402

DENSE_PEAK = 989e12
"""Of an H100 or H200, bf16."""
WARM_UP, TIMED = 5, 10


def main() -> int:
    arguments = _arguments()
    if arguments.worker:
        _work(arguments)
        return 0
    lines = []
    for arm in arguments.arms:
        worker = subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], "--worker", arm], stdout=subprocess.PIPE, text=True
        )
        assert worker.stdout is not None
        for line in worker.stdout:
            if line.startswith("{"):
                lines.append(json.loads(line))
            # At once: whoever ends this early has what was measured until then.
            print(line, end="", flush=True)
        if worker.wait() != 0:
            lines.append({"arm": arm, "error": f"exit code {worker.returncode}, see above"})
    _print_table(lines)
    return 1 if any("error" in result for result in lines) else 0


def _work(arguments: argparse.Namespace) -> None:
    """One arm, in a process of its own."""
    device = torch.device("cpu" if arguments.tiny else "cuda")
    if arguments.tiny:
        torch.set_num_threads(1)
    config = make_config(arguments.tiny)
    measured_peak = _matmul_peak(device)
    try:
        arm = ARMS[arguments.worker](config, device, arguments)
    except ImportError as error:
        print(json.dumps({"arm": arguments.worker, "left_out": str(error)}))
        return
    for num_anchors in arguments.anchors:
        case = make_case(config, arguments.tokens, num_anchors, device)
        for name, with_labels, step in arm.steps(case):
            result = {"arm": name, "anchors": num_anchors, "tokens": arguments.tokens}
            try:
                result |= _timed(step, device)
            except torch.OutOfMemoryError as error:
                print(json.dumps(result | {"error": f"out of memory: {error}"[:120]}), flush=True)
                continue
            rate = useful_flop(case, with_labels=with_labels) / result["step_s"]
            result |= {
                "r": num_anchors * config.block_size / arguments.tokens,
                "context_tokens_per_s": arguments.tokens / result["step_s"],
                "mfu_dense": rate / DENSE_PEAK,
                "mfu_matmul": rate / measured_peak,
                "matmul_tflops": measured_peak / 1e12,
                "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
                "torch": torch.__version__,
                "notes": arm.notes,
            }
            print(json.dumps(result), flush=True)
        if arguments.profile and arguments.worker == "ours":
            _profile(next(iter(arm.steps(case)))[2], device)
        del case, step
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _timed(step: Callable[[], Tensor], device: torch.device) -> dict[str, Any]:
    is_cuda = device.type == "cuda"
    started = time.perf_counter()
    step()
    _wait(device)
    first_s = time.perf_counter() - started
    for _ in range(WARM_UP - 1):
        step()
    _wait(device)
    if is_cuda:
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(TIMED):
        started = time.perf_counter()
        loss = step()
        _wait(device)
        seconds.append(time.perf_counter() - started)
    quartiles = statistics.quantiles(seconds, n=4)
    return {
        "step_s": statistics.median(seconds),
        "iqr_s": quartiles[2] - quartiles[0],
        "first_s": first_s,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if is_cuda else 0.0,
        "reserved_gib": torch.cuda.max_memory_reserved() / 2**30 if is_cuda else 0.0,
        "loss": float(loss),
    }


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _matmul_peak(device: torch.device) -> float:
    """FLOP/s of a square bf16 product, measured hot."""
    if device.type == "cpu":
        return 1e11
    size, repeats = 8192, 30
    one, other = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(repeats):
        one @ other
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(repeats):
        one @ other
    torch.cuda.synchronize()
    return repeats * 2 * size**3 / (time.perf_counter() - started)


def _profile(step: Callable[[], Tensor], device: torch.device) -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        step()
        _wait(device)
    key = "self_cuda_time_total" if device.type == "cuda" else "self_cpu_time_total"
    print(found.key_averages().table(sort_by=key, row_limit=25, max_name_column_width=90))


def _print_table(lines: list[dict[str, Any]]) -> None:
    print(
        f"{'arm':<28}{'anchors':>8}{'r':>5}{'ms':>9}{'+-':>6}{'ctx tok/s':>11}{'MFU':>7}{'of matmul':>10}"
        f"{'GiB':>7}{'loss':>9}{'first s':>9}"
    )
    for line in lines:
        if "error" in line or "left_out" in line:
            print(f"{line['arm']:<28}{line.get('error') or 'left out: ' + line['left_out']}")
            continue
        print(
            f"{line['arm']:<28}{line['anchors']:>8}{line['r']:>5.1f}{line['step_s'] * 1e3:>9.1f}"
            f"{line['iqr_s'] * 1e3:>6.1f}{line['context_tokens_per_s']:>11.0f}{line['mfu_dense']:>7.1%}"
            f"{line['mfu_matmul']:>10.1%}{line['peak_gib']:>7.2f}{line['loss']:>9.4f}{line['first_s']:>9.1f}"
        )
    for notes in dict.fromkeys((line["arm"], line["notes"]) for line in lines if line.get("notes")):
        print(f"{notes[0]}: {notes[1]}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", choices=["ours", "speculators"], default=["ours", "speculators"])
    parser.add_argument("--anchors", nargs="+", type=int, help="default 512 and 2048: r = 1 and 4")
    parser.add_argument("--tokens", type=int, help="context tokens of the packed row, default 8192")
    parser.add_argument("--group", type=int, help="blocks of a group of ours; default: the trainer's")
    parser.add_argument("--chunk-rows", type=int, help="rows of logits at a time of ours; default: the trainer's")
    parser.add_argument("--attention", choices=["flex", "triton"], default="flex", help="of ours")
    parser.add_argument("--trims", action=argparse.BooleanOptionalAction, default=None, help="of ours: see trim.py")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True, help="speculators' layers")
    parser.add_argument("--tiny", action="store_true", help="small shapes on a CPU")
    parser.add_argument("--profile", action="store_true", help="print the 25 longest kernels of one step of ours")
    parser.add_argument("--json", action="store_true", help="print a line of JSON a case before the table")
    parser.add_argument("--worker", choices=["ours", "speculators"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.tokens = arguments.tokens or (256 if arguments.tiny else 8192)
    arguments.anchors = arguments.anchors or ([16, 64] if arguments.tiny else [512, 2048])
    return arguments


if __name__ == "__main__":
    raise SystemExit(main())
