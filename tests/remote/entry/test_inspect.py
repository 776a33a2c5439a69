"""The job as a process, with the embedded target and its real chat template."""

import json
import os
import subprocess
import sys
from pathlib import Path

from dflashctl_remote.data.tokenize import tokenize
from dflashctl_remote.spec.data import InspectReport, TokenizeSpec

ROOT = Path(__file__).parents[3]
TARGET = ROOT / "dflashctl" / "assets" / "demo_target"


def run(tmp_path, **spec):
    (tmp_path / "spec.json").write_text(json.dumps({"target": str(TARGET), **spec}))
    argv = [sys.executable, "-m", "dflashctl_remote.entry.inspect"]
    argv += ["--spec", str(tmp_path / "spec.json"), "--events", str(tmp_path / "events.jsonl")]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "remote")}
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_report_shows_the_answer_of_a_chat_as_trained_on(tmp_path):
    turns = [("user", "What is 中?"), ("assistant", "A word. 😀"), ("user", "Ok"), ("assistant", "Yes")]
    row = {"messages": [{"role": r, "content": c} for r, c in turns]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    dataset, output = tmp_path / "dataset", tmp_path / "out" / "report.json"
    tokenize(
        TokenizeSpec(target=str(TARGET), input=str(tmp_path / "rows.jsonl"), output=str(dataset)),
        lambda done, total: None,
    )
    done = run(tmp_path, dataset=str(dataset), output=str(output))
    assert (done.returncode, done.stderr) == (0, "")
    report = InspectReport.model_validate_json(output.read_text())
    supervised = "".join(s.text if s.is_supervised else "|" for s in report.documents[0].spans)
    assert supervised == "|A word. 😀<|im_end|>|Yes<|im_end|>"


def test_folder_that_is_no_complete_dataset_exits_5(tmp_path):
    (tmp_path / "dataset").mkdir()
    done = run(tmp_path, dataset=str(tmp_path / "dataset"), output=str(tmp_path / "report.json"))
    assert done.returncode == 5
    assert "is not a complete dataset" in done.stderr
    assert not (tmp_path / "report.json").exists()
