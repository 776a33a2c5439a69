"""The training job as a process of its own: what only a real SIGKILL and real signals show."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dflashctl_remote.trainer.checkpoint import complete_steps
from dflashctl_remote.trainer.lock import sole_trainer

BUNDLE = Path(__file__).parents[3] / "remote"


def run_train(
    folder: Path, at_step: Callable[[int, "subprocess.Popen[str]"], None] = lambda step, process: None
) -> int:
    """Run the job on folder/run.json; its events go through a pipe into folder/events.jsonl. Returns the exit code."""
    command = [sys.executable, "-m", "dflashctl_remote.entry.train"]
    command += ["--spec", str(folder / "run.json"), "--events", "/dev/stdout"]
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(BUNDLE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    with process, (folder / "events.jsonl").open("a") as history:
        for line in process.stdout:
            history.write(line)
            event = json.loads(line)
            if event["kind"] == "step":
                at_step(event["step"], process)
    return process.returncode


def events_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def losses(folder: Path) -> dict[int, float]:
    """The last of each step, as readers take it."""
    return {event["step"]: event["loss"] for event in events_of(folder) if event["kind"] == "step"}


@pytest.fixture
def make_run(make_record, tmp_path):
    def make(name: str, **changes: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "run.json").write_text(make_record(**changes).model_dump_json())
        return folder

    return make


def test_finished_run_tells_where_its_checkpoint_is(make_run):
    folder = make_run("run")
    assert run_train(folder) == 0
    about = events_of(folder)[-1]["about"]
    assert (about["step"], about["checkpoint"]) == (7, str(folder / "checkpoints/step-00000007"))


@pytest.mark.slow
def test_a_second_process_of_a_run_says_nothing_in_its_account(make_run):
    folder = make_run("run")
    with sole_trainer(folder):
        assert run_train(folder) == 2
    assert events_of(folder) == []


def test_run_killed_at_5_random_steps_repeats_the_unbroken_one_to_the_bit(make_run):
    unbroken, killed = make_run("unbroken"), make_run("killed")
    assert run_train(unbroken) == 0
    draw = random.Random(2)
    for kill_at in sorted(draw.choices(range(1, 8), k=5)):

        def kill(step: int, process: "subprocess.Popen[str]", kill_at: int = kill_at) -> None:
            if step >= kill_at:
                process.kill()

        # -9 unless this step, the last one, was quick enough to end the run.
        assert run_train(killed, kill) in (-signal.SIGKILL, 0)
    assert run_train(killed) == 0
    assert losses(killed) == losses(unbroken)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signalled_run_exits_130_with_a_checkpoint_that_it_resumes_from(make_run, number):
    folder = make_run("stopped", num_steps=100)

    def stop(step: int, process: "subprocess.Popen[str]") -> None:
        if step == 1:
            process.send_signal(number)

    assert run_train(folder, stop) == 130
    last = events_of(folder)[-1]
    newest = max(complete_steps(folder / "checkpoints").values())
    assert (last["kind"], last["checkpoint"]) == ("stopped", str(newest))
    assert run_train(folder) == 0
    notices = [event["message"] for event in events_of(folder) if event["kind"] == "notice"]
    assert any(f"resuming from {newest.name}" in notice for notice in notices), notices
    assert list(losses(folder)) == list(range(1, 101))
