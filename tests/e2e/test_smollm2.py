"""A real language model through the everyday commands: SmolLM2-135M answers HumanEval's prompts, a drafter learns from
the answers, and its acceptance is measured on prompts that it has not seen, before and after.

`make e2e` runs it: 25 minutes of processor time, no GPU. Sizes are in smollm2.yaml, figures go to .e2e/result.json.
The target is made once, everything else anew each time.
"""

import json
import os
import platform
import resource
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from dflashctl.records import ServerRecord
from dflashctl.stages.bench.report import BenchReport
from dflashctl.transport.tail import read_events
from dflashctl.views.bench import outcome as benchmark
from dflashctl.views.evaluation import acceptance, acceptance_by_slot
from dflashctl_remote.data.shards import Dataset
from dflashctl_remote.spec.drafter import DrafterConfig
from dflashctl_remote.spec.evaluate import EvalReport
from dflashctl_remote.spec.events import Step
from dflashctl_remote.spec.manifest import verify, write_json

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CONFIG = Path("tests/e2e/smollm2.yaml")
E2E = Path(".e2e")
WORK = E2E / "work"
DATASET = WORK / "dataset"
BENCHMARK = WORK / "benchmarks" / "smollm2"
CHECKPOINTS = WORK / "runs" / "smollm2" / "checkpoints"


@dataclass(frozen=True)
class StageTime:
    wall_s: float
    cpu_s: float
    """Of all its processes: what is left of it when others use the machine too."""


@dataclass(frozen=True)
class Life:
    before: EvalReport
    after: EvalReport
    steps: list[Step]
    served: BenchReport
    server: ServerRecord
    times: dict[str, StageTime]

    @property
    def last_checkpoint(self) -> Path:
        return ROOT / CHECKPOINTS / f"step-{self.steps[-1].num_steps:08d}"


@pytest.fixture(scope="module")
def life() -> Life:
    """Every stage, each by its own command line. Raises CalledProcessError at the first that fails."""
    times: dict[str, StageTime] = {}
    with _timed(times, "make target and prompts"):
        _run("scripts/smollm2.py", str(E2E))
    shutil.rmtree(ROOT / WORK, ignore_errors=True)
    for stage in (
        "data generate",
        "data tokenize",
        f"data inspect {DATASET} --tokens-per-batch 512",
        "train plan",
        "train start --run-id smollm2",
        f"eval run --checkpoint smollm2@0 --output {WORK / 'before'}",
        f"eval run --checkpoint smollm2@latest --output {WORK / 'after'}",
        "deploy up",
    ):
        _stage(times, stage)
    try:
        _stage(times, f"bench --output {BENCHMARK}")
        _stage(times, "status --format md")
    finally:
        _stage(times, "deploy down --server smollm2")
    made = Life(
        before=_report("before"),
        after=_report("after"),
        steps=[e for e in read_events(ROOT / CHECKPOINTS.parent / "events.jsonl") if isinstance(e, Step)],
        served=BenchReport.model_validate_json((ROOT / BENCHMARK / "run.json").read_bytes()),
        server=ServerRecord.model_validate_json((ROOT / WORK / "servers/smollm2/server.json").read_bytes()),
        times=times,
    )
    _show(made)
    _write_result(made)
    return made


def test_no_held_out_prompt_was_trained_on(life: Life) -> None:
    trained_on, held_out = (
        {row["messages"][0]["content"] for row in _rows(E2E / f"prompts-{name}.jsonl")}
        for name in ("train", "held-out")
    )
    assert len(held_out) == life.after.num_prompts
    assert not trained_on & held_out


def test_everything_that_was_made_is_complete(life: Life) -> None:
    verify(ROOT / DATASET, "dataset")
    verify(ROOT / CHECKPOINTS / "step-00000000", "checkpoint")
    verify(life.last_checkpoint, "checkpoint")
    verify(ROOT / WORK / "before", "evaluation")
    verify(ROOT / WORK / "after", "evaluation")


def test_mask_token_occurs_in_no_text(life: Life) -> None:
    dataset = Dataset.open(ROOT / DATASET)
    mask = _drafter(life).mask_token_id
    assert not any(mask in dataset.tokens(index).input_ids for index in range(len(dataset)))


def test_exported_drafter_is_the_one_asked_for(life: Life) -> None:
    asked = yaml.safe_load((ROOT / CONFIG).read_text(encoding="utf-8"))["train"]["drafter"]
    exported = _drafter(life)
    assert len(exported.tap_layers) == asked.pop("num_taps")
    assert {name: getattr(exported, name) for name in asked} == asked


def test_speculative_answers_are_greedy_token_for_token(life: Life) -> None:
    for report in (life.before, life.after):
        assert report.num_greedy_checked == report.num_prompts
        assert report.num_greedy_equal == report.num_greedy_checked


def test_training_raises_tau_on_held_out_prompts(life: Life) -> None:
    assert life.after.drafter.tau > life.before.drafter.tau
    assert life.after.drafter_without_repeats.tau > life.before.drafter_without_repeats.tau


def test_served_drafter_is_proven_and_lossless(life: Life) -> None:
    assert life.server.proof is not None
    assert life.server.proof.tau is not None
    assert life.server.proof.tau > 1
    assert life.server.stopped_at_s is not None
    assert life.served.is_valid
    assert life.served.is_lossless
    assert life.served.tau is not None
    assert 1 < life.served.tau <= 8


def _stage(times: dict[str, StageTime], stage: str) -> None:
    without = ("data inspect", "status", "deploy down")
    config = "" if stage.startswith(without) else f" --config {CONFIG}"
    with _timed(times, stage):
        _run("-m", *shlex.split(f"dflashctl {stage}{config} --workdir {WORK}"))


@contextmanager
def _timed(times: dict[str, StageTime], stage: str) -> Iterator[None]:
    start_s, start_cpu_s = time.monotonic(), _children_cpu_s()
    yield
    times[stage] = StageTime(round(time.monotonic() - start_s, 1), round(_children_cpu_s() - start_cpu_s, 1))


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run(*arguments: str) -> None:
    print(f"\n$ python {shlex.join(arguments)}", flush=True)
    path = os.pathsep.join((str(ROOT), str(ROOT / "remote")))
    subprocess.run([sys.executable, *arguments], cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, check=True)


def _report(name: str) -> EvalReport:
    return EvalReport.model_validate_json((ROOT / WORK / name / "report.json").read_bytes())


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ROOT / path).read_text(encoding="utf-8").splitlines()]


def _drafter(life: Life) -> DrafterConfig:
    return DrafterConfig.from_zlab(json.loads((life.last_checkpoint / "config.json").read_text(encoding="utf-8")))


def _show(life: Life) -> None:
    rows = (("drafter before training", life.before), (f"after {len(life.steps)} steps", life.after))
    console = Console(width=120, highlight=False)
    console.print(acceptance(rows), acceptance_by_slot(life.after))
    console.print(benchmark(life.served))
    console.print("    wall       cpu")
    for stage, spent in life.times.items():
        console.print(f"{spent.wall_s:8.1f} s{spent.cpu_s:8.1f} s  {stage}")
    console.print(f"{sum(spent.wall_s for spent in life.times.values()):8.1f} s            all")


def _write_result(life: Life) -> None:
    last = life.steps[-1]
    write_json(
        ROOT / E2E / "result.json",
        {
            "machine": f"{_cpu_model()}, {len(os.sched_getaffinity(0))} cores, no GPU used",
            "python": platform.python_version(),
            "finished_at": time.strftime("%Y-%m-%d %H:%M:%S %z"),
            "times": {stage: asdict(spent) for stage, spent in life.times.items()},
            "peak_process_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
            "training": last.model_dump(mode="json"),
            "first_loss": life.steps[0].loss,
            "before": life.before.model_dump(mode="json"),
            "after": life.after.model_dump(mode="json"),
            "served": life.served.model_dump(mode="json"),
        },
    )


def _cpu_model() -> str:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").is_file() else ""
    models = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return models[0] if models else platform.processor()
