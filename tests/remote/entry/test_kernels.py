"""The job as a process."""

import json
import os
import subprocess
import sys
from pathlib import Path

from dflashctl_remote.spec.kernels import KernelsReport

ROOT = Path(__file__).parents[3]


def run(tmp_path, **spec):
    output = tmp_path / "out" / "report.json"
    (tmp_path / "spec.json").write_text(json.dumps({"output": str(output), "device": "cpu", "num_threads": 1, **spec}))
    argv = [sys.executable, "-m", "dflashctl_remote.entry.kernels"]
    argv += ["--spec", str(tmp_path / "spec.json"), "--events", str(tmp_path / "events.jsonl")]
    # Nobody but the job itself asks for the interpreter.
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        argv, env={**env, "PYTHONPATH": str(ROOT / "remote")}, capture_output=True, text=True, timeout=120, check=False
    )
    return done, output


def test_kernels_are_checked_in_the_interpreter_and_the_report_is_left(tmp_path):
    done, output = run(tmp_path, action="test", kernels=["label_argmax"])
    assert (done.returncode, done.stderr) == (0, "")
    report = KernelsReport.model_validate_json(output.read_text())
    assert report.checks and not report.failed


def test_unknown_kernel_exits_2_and_leaves_no_report(tmp_path):
    done, output = run(tmp_path, action="test", kernels=["other"])
    assert done.returncode == 2
    assert "there is no kernel other (there are: linear_ce" in done.stderr
    assert not output.exists()
