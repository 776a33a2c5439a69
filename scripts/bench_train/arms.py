"""The arms of `make bench-train`: what each runs, how long it may take from cold caches, what its lines mean."""

import ast
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REMOTE = HERE.parents[1] / "remote"
CAP_GIB = 92.0
"""What torch can have of the users' cards of 96 GB."""
TOKENS = 8192

Row = dict[str, Any]
"""Has `what`; of r, tokens_per_s, ms, peak_gib, first_s, busy, note those that were measured; and what claims need."""


@dataclass(frozen=True)
class Case:
    is_tiny: bool
    folder: Path
    """For files of the arm; empty."""


@dataclass(frozen=True)
class Arm:
    about: str
    argv: Callable[[Case], Sequence[str]]
    rows: Callable[[Case, Sequence[str]], list[Row]]
    """From the lines that it printed, as far as it came."""
    limit_s: float
    num_gpus: int = 1
    runs_tiny: bool = True
    """Has something to do where there is no GPU."""


def script(name: str, *more: str) -> Callable[[Case], Sequence[str]]:
    """A script of this folder."""
    return lambda case: (sys.executable, str(HERE / name), *more, *(["--tiny"] if case.is_tiny else []))


def online(layout: str, *more: str) -> Callable[[Case], Sequence[str]]:
    return script("online.py", "--layout", layout, *more)


def ranks(case: Case) -> Sequence[str]:
    """Two processes, as torchrun starts them."""
    start = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(HERE / "online.py"))
    more = ("--ranks", "2", "--arms", "in threads", *(["--tiny"] if case.is_tiny else []))
    return (sys.executable, *start, *more)


def kernels(case: Case) -> Sequence[str]:
    spec = {"action": "bench", "kernels": ["linear_ce"], "output": str(case.folder / "report.json")}
    (case.folder / "spec.json").write_text(json.dumps(spec))
    files = ("--spec", str(case.folder / "spec.json"), "--events", str(case.folder / "events.jsonl"))
    return (sys.executable, "-m", "dflashctl_remote.entry.kernels", *files)


def environment(num_gpus: int) -> dict[str, str]:
    """This one's, with the bundle on the path and the first so many GPUs to be seen."""
    found = dict(os.environ)
    found["PYTHONPATH"] = os.pathsep.join(filter(None, (str(REMOTE), found.get("PYTHONPATH"))))
    found["PYTHONUNBUFFERED"] = "1"
    if num_gpus:
        seen = found.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(num_gpus)))).split(",")
        found["CUDA_VISIBLE_DEVICES"] = ",".join(seen[:num_gpus])
    return found


def loader_rows(case: Case, lines: Sequence[str]) -> list[Row]:
    rows = []
    for told in _json_lines(lines):
        if told["what"] == "order":
            rows.append({"what": f"order of {told['documents']:,} documents", "ms": 1e3 * told["seconds"]})
            continue
        beside = ", beside busy Python" if told["is_beside"] else ""
        ms = sum(value for key, value in told.items() if key.endswith("_ms"))
        rows.append(
            {"what": f"loader, one thread{beside}", "r": told["r"], "tokens_per_s": told["tokens_per_s"], "ms": ms}
        )
    return rows


def kernel_rows(case: Case, lines: Sequence[str]) -> list[Row]:
    path = case.folder / "report.json"
    if not path.is_file():
        return []
    report = json.loads(path.read_bytes())
    rows: list[Row] = [
        {"what": f"check failed: {check['claim']}", "note": check["detail"]}
        for check in report["checks"]
        if check["state"] == "failed"
    ]
    for bench in report["benches"]:
        rows += [
            {
                "what": f"{bench['kernel']}, {arm['name']}",
                "ms": arm["median_ms"],
                "extra_gib": None if arm["extra_bytes"] is None else arm["extra_bytes"] / 2**30,
                "note": arm["detail"],
            }
            for arm in bench["arms"]
        ]
        rows += [{"bar": bar["what"], "limit": bar["limit"], "found": bar["found"]} for bar in bench["bars"]]
    return rows


def drafter_rows(case: Case, lines: Sequence[str]) -> list[Row]:
    rows = []
    for told in _json_lines(lines):
        if "step_s" not in told:
            rows.append({"what": told["arm"], "note": told.get("error") or f"left out: {told['left_out']}"})
            continue
        rows.append(
            {
                "what": told["arm"],
                "r": told["r"],
                "tokens_per_s": told["context_tokens_per_s"],
                "ms": 1e3 * told["step_s"],
                "peak_gib": told["peak_gib"] or None,
                "first_s": told["first_s"],
                "note": told["notes"],
                "loss": told["loss"],
            }
        )
    return rows


def target_rows(case: Case, lines: Sequence[str]) -> list[Row]:
    return [
        {
            "what": told["arm"],
            "num_tokens": told["num_tokens"],
            "tokens_per_s": told["tokens_per_s"],
            "ms": 1e3 * told["step_s"],
            "peak_gib": told["peak_gib"] or None,
            "first_s": told["first_s"],
            "ratio": told["ratio"],
            "note": f"{told['num_tokens']} tokens, {told['ratio']:.3f}x transformers",
        }
        for told in _json_lines(lines)
    ]


def online_rows(case: Case, lines: Sequence[str]) -> list[Row]:
    """Of the lines that it prints after each of its arms: those before one that was cut short count."""
    rows = []
    for line in lines:
        if "tokens_per_s " not in line:
            continue
        told = {key: _value(text) for key, _, text in (part.partition(" ") for part in line.strip().split("  "))}
        where = told["layout"] if told["ranks"] == 1 else f"{told['ranks']} ranks"
        cap = "" if told["cap_gib"] is None else f", at most {told['cap_gib']:g} GiB"
        more = told.get("more_s_for_one_checkpoint")
        row = {
            "what": f"{where}, {told['arm']}{cap}",
            "arm": told["arm"],
            "cap_gib": told["cap_gib"],
            "r": told["block_ratio"],
            "tokens_per_s": told["tokens_per_s"],
            "peak_gib": told["peak_gib"],
            "busy": told["busy"],
            "limiting": told["limiting"],
            "note": " ".join(f"{name} {100 * share:.0f} %" for name, share in told["busy"].items()),
        }
        rows.append(row if more is None else row | {"more_s": more, "note": f"{more:g} s more for one checkpoint"})
    return rows


ARMS = {
    "loader": Arm("rows, anchors and slots on a CPU", script("loader.py", "--json"), loader_rows, 120, num_gpus=0),
    "kernels": Arm("linear cross-entropy", kernels, kernel_rows, 300, runs_tiny=False),
    "drafter": Arm(
        "our drafter step, r = 1 and 4", script("drafter.py", "--arms", "ours", "--json"), drafter_rows, 300
    ),
    "speculators": Arm(
        "that package's step at the same shapes",
        script("drafter.py", "--arms", "speculators", "--json"),
        drafter_rows,
        580,
        runs_tiny=False,
    ),
    "target": Arm("the target's forward pass, beside transformers", script("target.py", "--json"), target_rows, 540),
    "online": Arm(
        "training end to end, colocated",
        lambda case: online("colocated", *([] if case.is_tiny else ["--caps-gib", str(CAP_GIB)]))(case),
        online_rows,
        540,
    ),
    "saving": Arm(
        "what a checkpoint costs beside training",
        online("colocated", "--arms", "saving", "--warm-steps", "6", "--steps", "20"),
        online_rows,
        540,
        runs_tiny=False,
    ),
    "1+1": Arm("target and drafter on a GPU each", online("1+1", "--arms", "in threads"), online_rows, 540, 2),
    "2+1": Arm("two target threads share a GPU", online("2+1", "--arms", "in threads"), online_rows, 540, 2),
    "ranks": Arm("two colocated processes", ranks, online_rows, 540, 2),
}


def _json_lines(lines: Sequence[str]) -> list[Row]:
    return [json.loads(line) for line in lines if line.startswith("{") and line.rstrip().endswith("}")]


def _value(text: str) -> Any:
    """What a value printed by str() was."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
