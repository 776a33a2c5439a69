"""The demo as a user runs it: broken off by Ctrl-C, given again, and given once more."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STEPS = "160"
"""As few as a drafter needs for one of its drafts to be accepted, without which no server is called ready."""
SMALL = (
    "train.batch.tokens_per_batch=512",
    "evaluate.max_new_tokens=24",
    "train.num_threads=1",
    "evaluate.num_threads=1",
)

pytestmark = pytest.mark.slow


@pytest.fixture
def demo(tmp_path):
    def start():
        words = [sys.executable, "-m", "dflashctl", "demo", "--workdir", "demo", "--steps", STEPS, "--num-prompts", "2"]
        path = os.pathsep.join((str(ROOT), str(ROOT / "remote")))
        return subprocess.Popen(
            [*words, *(word for value in SMALL for word in ("--set", value))],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def test_demo_broken_off_in_training_goes_on_and_then_has_nothing_to_do(demo, tmp_path):
    first = demo()
    for line in first.stderr:
        if line.startswith("step "):
            first.send_signal(signal.SIGINT)
            break
    _, said = first.communicate()
    assert first.returncode == 130
    assert "the same command goes on from here" in said

    second = demo()
    shown, said = second.communicate()
    assert second.returncode == 0, said
    assert "data tokenize: complete already" in said
    assert "train resume demo" in said
    assert f"drafter after {STEPS} steps" in shown
    report = json.loads((tmp_path / "demo" / "demo.json").read_text())
    assert report["is_complete"]
    assert report["after"]["num_greedy_equal"] == report["after"]["num_greedy_checked"] > 0
    assert report["peak_memory_bytes"] > 0

    assert report["served"]["is_valid"]
    assert report["served"]["is_lossless"]
    server = json.loads((tmp_path / "demo" / "servers" / "demo" / "server.json").read_text())
    assert server["stopped_at_s"] is not None
    assert (tmp_path / "demo" / "benchmarks" / "demo" / "report.html").is_file()

    third = demo()
    _, said = third.communicate()
    assert third.returncode == 0
    # What is left is to show the status, and to see that no server is there.
    assert said.count("complete already") == len(report["stages"]) - 2
