"""How fast training is, against what it was to reach: `make bench-train`, or `python scripts/bench_train` in any venv.

All arms that this machine has the GPUs for, one after the other, each a process with a limit of its own: from cold
caches torch.compile takes minutes of some. What they print is shown as it comes; one table and the bars come last.
Where calls are short, choose arms and keep the results together:

    python scripts/bench_train --json train.json --only drafter target --within 560
    python scripts/bench_train --json train.json --add --only speculators --within 560
    python scripts/bench_train --json train.json --add --only          the table of all that was kept

Without a GPU every arm that can runs at tiny shapes, to see that it works, and only the loader is judged.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from arms import ARMS, Arm, Case, environment
from claims import claims

PACKAGES = ("torch", "triton", "transformers", "flash-linear-attention", "speculators", "liger-kernel")
LEAST_S = 20.0
"""With less left of the time for all, an arm is not begun."""
Result = dict[str, Any]


def main() -> int:
    arguments = _arguments()
    gpus = find_gpus()
    is_tiny = arguments.tiny or not gpus
    machine = describe(gpus)
    print(f"{machine}{'; tiny shapes, whose rates mean nothing' if is_tiny else ''}", flush=True)
    results = kept(arguments.json, machine) if arguments.add else {}
    names = default_arms(len(gpus), is_tiny) if arguments.only is None else arguments.only
    ends_s = time.monotonic() + arguments.within
    for name in names:
        limit_s = min(arguments.limit or ARMS[name].limit_s, ends_s - time.monotonic())
        results[name] = carry_out(name, len(gpus), limit_s, is_tiny=is_tiny)
        if arguments.json is not None:
            # At once: whoever ends this early has what was measured until then.
            arguments.json.write_text(json.dumps({"machine": machine, "arms": results}, indent=1) + "\n")
    return report(results)


def default_arms(num_gpus: int, is_tiny: bool) -> list[str]:
    if is_tiny:
        return [name for name, arm in ARMS.items() if arm.runs_tiny and arm.num_gpus < 2]
    return [name for name, arm in ARMS.items() if arm.num_gpus <= num_gpus]


def carry_out(name: str, num_gpus: int, limit_s: float, *, is_tiny: bool) -> Result:
    """Run an arm to its end or its limit; what it had printed until then counts."""
    arm = ARMS[name]
    result: Result = {"at_s": time.time(), "is_tiny": is_tiny and name != "loader", "rows": [], "problem": ""}
    if is_tiny and not arm.runs_tiny:
        return result | {"problem": "needs a GPU"}
    if not is_tiny and arm.num_gpus > num_gpus:
        return result | {"problem": f"needs {arm.num_gpus} GPUs, here are {num_gpus}"}
    if limit_s < LEAST_S:
        return result | {"problem": "not begun: the time for all arms was over"}
    print(f"\n{name}: {arm.about}; at most {limit_s:.0f} s", flush=True)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        # The loader needs no GPU, and is as quick at its real shapes.
        case = Case(is_tiny and name != "loader", Path(folder))
        lines, problem = run(arm, case, limit_s)
        rows = arm.rows(case, lines)
        problem = problem or ("" if rows else "it ended well and told no figure")
    seconds = time.monotonic() - began_s
    print(f"{name}: {seconds:.0f} s{f', {problem}' if problem else ''}", flush=True)
    return result | {"rows": rows, "problem": problem, "seconds": round(seconds, 1)}


def run(arm: Arm, case: Case, limit_s: float) -> tuple[list[str], str]:
    """Its lines, each shown as it comes, and what was wrong with its end."""
    lines = []
    is_over = threading.Event()
    with subprocess.Popen(
        arm.argv(case),
        env=environment(0 if case.is_tiny else arm.num_gpus),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:

        def end() -> None:
            is_over.set()
            _kill_all_of(process)

        timer = threading.Timer(limit_s, end)
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                print(f"  {line}", end="", flush=True)
            code = process.wait()
        finally:
            timer.cancel()
            if process.poll() is None:
                _kill_all_of(process)
    if is_over.is_set():
        return lines, f"ended at its limit of {limit_s:.0f} s"
    return lines, f"exit code {code}" if code else ""


def report(results: Mapping[str, Result]) -> int:
    """The table and the bars; 1 if one is missed, or an arm did not come to its end."""
    head = f"{'':12}{'':44}{'r':>5}{'tokens/s':>12}{'ms':>10}{'GiB':>8}{'first s':>9}"
    print(f"\n{head}")
    for name, result in results.items():
        if result["problem"]:
            print(f"{name:12}{result['problem']}")
        for row in result["rows"]:
            if "what" in row:
                print(f"{name:12}{row['what']:44}{_figures(row)}  {row.get('note') or ''}".rstrip())
    judged = claims({name: result["rows"] for name, result in results.items() if not result["is_tiny"]})
    print("\n".join(["", *map(str, judged)]) if judged else "")
    are_done = not any(result["problem"] for result in results.values())
    return 0 if are_done and all(claim.holds is not False for claim in judged) else 1


def kept(path: Path | None, machine: str) -> dict[str, Result]:
    """Results of an earlier call on this machine; arms that are run again take the place of theirs."""
    if path is None or not path.is_file():
        return {}
    told = json.loads(path.read_bytes())
    if told["machine"] != machine:
        raise SystemExit(f"{path} is of another machine ({told['machine']}): give another --json, or leave out --add")
    return dict(told["arms"])


def find_gpus() -> list[str]:
    """Names of the GPUs that a process started here sees."""
    if shutil.which("nvidia-smi") is None:
        return []
    asked = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    found = [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    return found if allowed is None else found[: len([part for part in allowed.split(",") if part])]


def describe(gpus: list[str]) -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = []
    for name in PACKAGES:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    what = ", ".join(f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus)) or "no GPU"
    return f"{what}; {cores} cores; Python {platform.python_version()}, {', '.join(versions)}"


def _figures(row: Mapping[str, Any]) -> str:
    def cell(key: str, width: int, shape: str) -> str:
        value = row.get(key)
        return f"{'' if value is None else format(value, shape):>{width}}"

    figures = (
        cell("r", 5, ".1f"),
        cell("tokens_per_s", 12, ",.0f"),
        cell("ms", 10, ",.2f"),
        cell("peak_gib" if "peak_gib" in row else "extra_gib", 8, ".2f"),
        cell("first_s", 9, ".1f"),
    )
    return "".join(figures)


def _kill_all_of(process: subprocess.Popen[str]) -> None:
    """The arm and what it started: a session of its own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench_train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="ARM", nargs="*", choices=ARMS, help=f"of {', '.join(ARMS)}")
    parser.add_argument("--limit", metavar="S", type=float, help="of each arm, instead of its own")
    parser.add_argument("--within", metavar="S", type=float, default=float("inf"), help="of all arms together")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all figures there, after every arm")
    parser.add_argument("--add", action="store_true", help="keep what that file holds of other arms")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes on a CPU, even where there is a GPU")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
