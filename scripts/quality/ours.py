"""Our arm: the product's own training job, once for a few steps to measure their rate, then for as many as fit."""

import shutil
import time
from pathlib import Path
from typing import Any

from fit import steps_for, steps_per_s
from jobs import Job, started
from settings import Settings

from dflashctl_remote.spec.bundle import bundle_sha
from dflashctl_remote.spec.manifest import write_json
from dflashctl_remote.spec.train import RunRecord, TrainSpec

OVERTIME = 1.1
"""Of the planned time a run is asked to stop: a step's rate may change."""
_TELL_EVERY_S = 20.0


def train_ours(settings: Settings, target: Path, work: Path, changes: dict[str, Any]) -> dict[str, Any]:
    """Write `work`/ours/checkpoint and `work`/ours.json; `changes` replace keys of the train section."""
    folder = work / "ours"
    shutil.rmtree(folder, ignore_errors=True)
    measured = _run(_spec(settings, target, work, settings.measure_steps, changes), folder / "measure", None)
    ends_s = [event["at_s"] for event in measured]
    num_steps = steps_for(settings.train_s, ends_s)
    print(f"ours: {steps_per_s(ends_s):.2f} steps/s, so {num_steps} in {settings.train_s:.0f} s", flush=True)
    spec = _spec(settings, target, work, num_steps, changes)
    steps = _run(spec, folder / "run", settings.train_s * OVERTIME)
    last = steps[-1]
    (folder / "checkpoint").mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(
            folder / "run" / "checkpoints" / f"step-{last['step']:08d}" / name, folder / "checkpoint" / name
        )
    found = {
        "trainer": "dflashctl",
        "num_steps": last["step"],
        "planned_steps": num_steps,
        "seconds_s": _seconds(steps),
        "context_tokens": last["step"] * settings.tokens_per_batch,
        "num_anchors": settings.num_anchors,
        "loss": last["loss"],
        "accuracy_by_slot": last["accuracy_by_slot"],
        "epochs": last["epoch"],
        "peak_memory_bytes": last["peak_memory_bytes"],
        "limiting_stage": last["limiting_stage"],
        "stages": last["stages"],
        "settings": spec.model_dump(mode="json"),
    }
    write_json(work / "ours.json", found)
    return found


def _spec(settings: Settings, target: Path, work: Path, num_steps: int, changes: dict[str, Any]) -> TrainSpec:
    section: dict[str, Any] = {
        "target": str(target.resolve()),
        "dataset": str((work / "dataset").resolve()),
        "num_steps": num_steps,
        "drafter": settings.drafter(target).model_dump(),
        "batch": {
            "tokens_per_batch": settings.tokens_per_batch,
            "max_length_tokens": settings.tokens_per_batch,
            "block_ratio": settings.block_ratio,
        },
        "optim": {"learning_rate": 1e-3},
        "checkpoint": {"every_steps": num_steps, "keep": 1, "keep_best": 0},
        "validation": {"held_out_share": 0.0},
        "seed": settings.seed,
    }
    for name, value in changes.items():
        is_part = isinstance(value, dict) and isinstance(section.get(name), dict)
        section[name] = {**section[name], **value} if is_part else value
    return TrainSpec.model_validate(section)


def _run(spec: TrainSpec, folder: Path, limit_s: float | None) -> list[dict[str, Any]]:
    """The step events of a whole run; after `limit_s` of training it is asked to stop."""
    folder.mkdir(parents=True)
    record = RunRecord(run_id=folder.name, created_at_s=time.time(), bundle_sha=bundle_sha(), train=spec)
    write_json(folder / "run.json", record.model_dump(mode="json"))
    with started("train", folder / "run.json") as job:
        steps = _watched(job, folder, spec.num_steps, limit_s)
        job.refuse_failure()
    return steps


def _watched(job: Job, folder: Path, num_steps: int, limit_s: float | None) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    told_s, is_running = time.monotonic(), True
    while is_running:
        is_running = job.is_running()
        events = job.new_events()
        steps += [event for event in events if event["kind"] == "step"]
        for event in events:
            if event["kind"] == "notice":
                print(f"ours: {event['message']}", flush=True)
        if steps and time.monotonic() - told_s > _TELL_EVERY_S:
            told_s = time.monotonic()
            last = steps[-1]
            print(
                f"ours: step {last['step']} of {num_steps}, loss {last['loss']:.3f}, accuracy {last['accuracy']:.3f}, "
                f"{_seconds(steps):.0f} s",
                flush=True,
            )
        if steps and limit_s is not None and _seconds(steps) > limit_s and steps[-1]["step"] < num_steps:
            (folder / "stop.requested").write_text('{"who": "the time limit"}', encoding="utf-8")
            limit_s = None
        time.sleep(0.2)
    return steps


def _seconds(steps: list[dict[str, Any]]) -> float:
    """From the end of the first step to that of the last: compilation is before it."""
    return float(steps[-1]["at_s"] - steps[0]["at_s"])
