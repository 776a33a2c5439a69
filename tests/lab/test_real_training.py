"""The real trainer on a host behind a jump host: stopped, killed, resumed; and the same losses as without all that."""

import io
import json
import signal
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

import dflashctl
from sshlab.host import wait_until

ASSETS = Path(dflashctl.__file__).parent / "assets"
STEPS = 60
"""So many that a stop or a kill on a busy machine still comes before the last."""

pytestmark = pytest.mark.slow


@pytest.fixture
def prepared(lab, kpro6, tmp_path):
    """The operator with a run.yaml, and target and dataset at the same paths here and there."""
    operator = lab.operator(tmp_path, kpro6={"python": sys.executable, "env": None})
    data = {"target": str(ASSETS / "demo_target"), "input": str(ASSETS / "demo_data/responses-train.jsonl.gz")}
    train = {
        "target": "~/demo_target",
        "dataset": "~/dataset",
        "num_steps": STEPS,
        "num_threads": 1,
        "device": "cpu",
        "drafter": {
            "tap_layers": [0, 1, 2],
            "block_size": 8,
            "num_layers": 2,
            "num_heads": 4,
            "num_kv_heads": 2,
            "head_dim": 16,
        },
        "batch": {"tokens_per_batch": 512, "max_length_tokens": 256},
        "checkpoint": {"every_steps": 3, "keep": 2},
    }
    run_file = operator.home / "run.yaml"
    run_file.write_text(yaml.safe_dump({"data": {"tokenize": data}, "train": train}))
    made = operator.cli("data", "tokenize", "-c", str(run_file), "--output", "dataset", timeout_s=300)
    assert made.code == 0, made.err
    (operator.home / "demo_target").symlink_to(ASSETS / "demo_target")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(ASSETS / "demo_target", "demo_target")
        tar.add(operator.home / "dataset", "dataset")
    kpro6.exec(["tar", "-x", "-C", kpro6.home()], stdin=packed.getvalue())
    yield operator, run_file
    operator.end_started()


def losses(events: bytes) -> dict[int, float]:
    """The last word on each step."""
    told = [json.loads(line) for line in events.splitlines() if line.strip()]
    return {event["step"]: event["loss"] for event in told if event["kind"] == "step"}


def test_a_run_that_was_stopped_and_killed_there_has_the_losses_of_one_left_alone_here(prepared, kpro6, tmp_path):
    operator, run_file = prepared
    alone = operator.cli("train", "start", "-c", str(run_file), "--run-id", "r", timeout_s=300)
    assert alone.code == 0, alone.err
    events = f"{kpro6.home()}/{tmp_path.name}/runs/r/events.jsonl"

    def reaches(step):
        wait_until(lambda: kpro6.exists(events) and step in losses(kpro6.read(events)), f"no step {step}", 120.0)

    def runs(*words):
        done = operator.cli("train", *words, "--host", "kpro6", timeout_s=300)
        assert done.code == 0, done.err
        return done

    runs("start", "-c", str(run_file), "--run-id", "r", "--detach")
    reaches(4)
    runs("stop", "r")
    runs("resume", "r", "--detach")
    reaches(20)
    for job in kpro6.jobs():
        kpro6.signal(job, signal.SIGKILL)
    wait_until(lambda: not kpro6.jobs(), "something is left")
    resumed = runs("resume", "r")
    assert "run r on kpro6 finished" in resumed.out
    here = losses((operator.home / "dflashctl-work/runs/r/events.jsonl").read_bytes())
    there = losses(kpro6.read(events))
    assert sorted(there) == list(range(1, STEPS + 1))
    assert there == here
