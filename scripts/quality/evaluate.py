"""Both drafters on the held-out prompts, by the product's evaluation job: free-running greedy decoding in float32."""

import json
import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from jobs import Job, started
from settings import Settings

from dflashctl_remote.spec.evaluate import EvalSpec
from dflashctl_remote.spec.manifest import write_json

ARMS = ("ours", "theirs")
_TELL_EVERY_S = 20.0


def evaluate(settings: Settings, target: Path, work: Path) -> None:
    """Write `work`/eval/ARM.jsonl, the answers of each arm that was trained, all at once on one device."""
    folder = work / "eval"
    arms = [arm for arm in ARMS if (work / arm / "checkpoint").is_dir()]
    prompts = (work / "prompts-held-out.jsonl").read_text(encoding="utf-8").splitlines()
    # Every n-th, so that all categories are among the first.
    wanted = settings.eval_prompts or len(prompts)
    prompts = [prompts[i * len(prompts) // wanted] for i in range(wanted)]
    with ExitStack() as stack:
        jobs: dict[str, Job] = {}
        for arm in arms:
            for number in range(settings.eval_shards):
                spec = _shard(settings, target, work, folder / f"{arm}-{number}", arm, number, prompts)
                jobs[spec.parent.name] = stack.enter_context(
                    started("evaluate", spec, num_threads=settings.eval_threads)
                )
        _wait(jobs)
        for job in jobs.values():
            job.refuse_failure()
    for arm in arms:
        shards = [folder / f"{arm}-{number}" / "output" for number in range(settings.eval_shards)]
        lines = "".join((shard / "answers.jsonl").read_text(encoding="utf-8") for shard in shards)
        (folder / f"{arm}.jsonl").write_text(lines, encoding="utf-8")
        reports = [json.loads((shard / "report.json").read_text(encoding="utf-8")) for shard in shards]
        write_json(folder / f"{arm}.reports.json", reports)


def _shard(
    settings: Settings, target: Path, work: Path, folder: Path, arm: str, number: int, prompts: list[str]
) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    mine = prompts[number :: settings.eval_shards]
    (folder / "prompts.jsonl").write_text("".join(f"{line}\n" for line in mine), encoding="utf-8")
    spec = EvalSpec(
        target=str(target.resolve()),
        checkpoint=str((work / arm / "checkpoint").resolve()),
        is_public=True,
        prompts=str((folder / "prompts.jsonl").resolve()),
        output=str((folder / "output").resolve()),
        max_new_tokens=settings.eval_tokens,
        num_threads=settings.eval_threads,
        check_greedy=2,
        check_parity=2 if number == 0 else 0,
    )
    write_json(folder / "spec.json", spec.model_dump(mode="json"))
    return folder / "spec.json"


def _wait(jobs: dict[str, Job]) -> None:
    done: dict[str, tuple[int, int]] = {}
    told_s = time.monotonic()
    is_running = True
    while is_running:
        is_running = any(job.is_running() for job in jobs.values())
        for name, job in jobs.items():
            for event in job.new_events():
                _note(name, event, done)
        if time.monotonic() - told_s > _TELL_EVERY_S:
            told_s = time.monotonic()
            print("evaluate: " + "  ".join(f"{n} {a}/{b}" for n, (a, b) in sorted(done.items())), flush=True)
        time.sleep(0.2)


def _note(name: str, event: dict[str, Any], done: dict[str, tuple[int, int]]) -> None:
    if event["kind"] == "progress":
        done[name] = (event["done"], event["total"])
    elif event["kind"] == "notice" and "manifest" not in event["message"]:
        print(f"evaluate {name}: {event['message']}", flush=True)
