"""What the demo writes beside its stages: run.yaml, and demo.json with what was measured."""

import itertools
import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml
from pydantic import ValidationError

from dflashctl.errors import ArtifactError, ConfigError
from dflashctl.records import BenchRecord
from dflashctl.stages.demo.plan import NUM_GENERATE_PROMPTS, DemoPlan
from dflashctl.transport.tail import read_events
from dflashctl_remote.spec.base import Spec
from dflashctl_remote.spec.evaluate import EvalReport
from dflashctl_remote.spec.events import Step
from dflashctl_remote.spec.manifest import write_atomically

ASSETS = Path(__file__).resolve().parents[2] / "assets"
DEMO_TARGET = ASSETS / "demo_target"
TRAIN_PROMPTS = ASSETS / "demo_data" / "prompts-train.jsonl"
HELDOUT_PROMPTS = ASSETS / "demo_data" / "prompts-heldout.jsonl"


class StageTime(Spec):
    name: str
    command: str
    wall_s: float


class DemoReport(Spec):
    """demo.json; written after every stage, so that a demo that is broken off keeps its times."""

    schema_version: Literal[1] = 1
    is_complete: bool = False
    target: str
    machine: str
    num_cpus: int
    stages: tuple[StageTime, ...] = ()
    num_steps: int | None = None
    final_loss: float | None = None
    final_accuracy: float | None = None
    peak_memory_bytes: int | None = None
    """Of the training process."""
    before: EvalReport | None = None
    after: EvalReport | None = None
    served: BenchRecord | None = None


@dataclass(frozen=True)
class Training:
    """The last training steps' figures."""

    num_steps: int
    loss: float
    accuracy: float
    peak_memory_bytes: int


def shipped_responses() -> Path:
    """The embedded target's own answers. Raises ArtifactError if the installation lacks them."""
    for name in ("responses-train.jsonl.gz", "responses-train.jsonl"):
        path = ASSETS / "demo_data" / name
        if path.is_file():
            return path
    raise ArtifactError(
        f"{ASSETS / 'demo_data'} holds no responses-train.jsonl: the installation is not complete",
        hint="install dflashctl again",
    )


def prepare(plan: DemoPlan, *, is_fresh: bool) -> DemoReport:
    """Make the work folder with its run.yaml and return what an earlier, broken-off demo measured.

    Raises ConfigError if the folder holds a demo that was made with other settings, or something else.
    """
    work = plan.settings.workdir
    text = _run_text(plan)
    if is_fresh and work.exists():
        _refuse_foreign(work, plan.run_file)
        shutil.rmtree(work)
    if work.exists() and any(work.iterdir()):
        _refuse_foreign(work, plan.run_file)
        if plan.run_file.read_text(encoding="utf-8") != text:
            raise ConfigError(
                f"{work} holds a demo that was made with other settings, see {plan.run_file}",
                hint="add --fresh to start anew, or choose another --workdir",
            )
    work.mkdir(parents=True, exist_ok=True)
    write_atomically(plan.run_file, text)
    if plan.settings.responses is None:
        _write_prompts(plan)
    return read_demo(plan.report_path) or DemoReport(
        target=str(plan.settings.target),
        machine=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        num_cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    )


def read_demo(path: Path) -> DemoReport | None:
    """None if there is none; raises ArtifactError if it cannot be read."""
    if not path.is_file():
        return None
    try:
        return DemoReport.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ArtifactError(f"{path} is not a demo's report of this version", hint="add --fresh") from error


def write_demo(plan: DemoPlan, report: DemoReport) -> None:
    write_atomically(plan.report_path, report.model_dump_json(indent=2) + "\n")


def read_training(plan: DemoPlan) -> Training | None:
    """From the run's events; the memory is the highest of all steps."""
    steps = [event for event in read_events(plan.run_folder / "events.jsonl") if isinstance(event, Step)]
    if not steps:
        return None
    last = steps[-1]
    return Training(last.step, last.loss, last.accuracy, max(step.peak_memory_bytes for step in steps))


def _run_text(plan: DemoPlan) -> str:
    head = "# Written by `dflashctl demo`; every command of the demo reads it. Change it and run them yourself.\n"
    return head + yaml.safe_dump(plan.run_yaml, sort_keys=False)


def _refuse_foreign(work: Path, run_file: Path) -> None:
    if not run_file.is_file():
        raise ConfigError(
            f"{work} is not empty and was not made by the demo (no {run_file.name} in it)",
            hint="choose another --workdir",
        )


def _write_prompts(plan: DemoPlan) -> None:
    with TRAIN_PROMPTS.open(encoding="utf-8") as file:
        lines = list(itertools.islice(file, NUM_GENERATE_PROMPTS))
    write_atomically(plan.settings.train_prompts, "".join(lines))
