"""The job as a process, with the embedded target: events, exit codes, and what is left behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TARGET = ROOT / "dflashctl" / "assets" / "demo_target"
GOOD = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}


def start(tmp_path, lines, **spec):
    source = tmp_path / "rows.jsonl"
    source.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
    wanted = {"target": str(TARGET), "input": str(source), "output": str(tmp_path / "dataset"), **spec}
    (tmp_path / "spec.json").write_text(json.dumps(wanted))
    argv = [sys.executable, "-m", "dflashctl_remote.entry.tokenize"]
    argv += ["--spec", str(tmp_path / "spec.json"), "--events", str(tmp_path / "events.jsonl")]
    return subprocess.Popen(
        argv, env={**os.environ, "PYTHONPATH": str(ROOT / "remote")}, stderr=subprocess.PIPE, text=True
    )


def run(tmp_path, lines, **spec):
    process = start(tmp_path, lines, **spec)
    _, stderr = process.communicate(timeout=120)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    return process.returncode, stderr, events


def test_job_reports_progress_notices_and_what_it_made(tmp_path):
    code, stderr, events = run(tmp_path, [GOOD, "no", GOOD], skip_bad=True)
    assert (code, stderr) == (0, "")
    assert [e["kind"] for e in events] == ["started", "progress", "notice", "finished"]
    assert events[1]["done"] == events[1]["total"]
    assert events[-1]["about"]["num_documents"] == 2
    assert events[-1]["about"]["num_skipped_rows"] == 1


@pytest.mark.parametrize(
    ("lines", "spec", "sentence"),
    [
        ([GOOD, "{"], {}, "rows.jsonl:2: expected one JSON object a line, found '{'"),
        ([{"messages": []}], {}, "rows.jsonl:1: expected a conversation, found no messages"),
        ([GOOD], {"max_length_tokens": 4}, "rows.jsonl:1: expected a supervised token within 4 tokens"),
    ],
    ids=["malformed line", "empty conversation", "no supervised token"],
)
def test_bad_row_exits_2_with_its_place_and_leaves_nothing(tmp_path, lines, spec, sentence):
    code, stderr, events = run(tmp_path, lines, **spec)
    assert code == 2
    assert sentence in stderr
    assert "--skip-bad" in events[-1]["hint"]
    assert not list(tmp_path.glob("dataset*"))


def test_tokenizer_without_chat_template_exits_2(tmp_path):
    target = tmp_path / "target"
    shutil.copytree(TARGET, target, ignore=shutil.ignore_patterns("chat_template.jinja", "*.safetensors"))
    code, stderr, _ = run(tmp_path, [GOOD], target=str(target))
    assert code == 2
    assert "has no chat template" in stderr


def test_interrupted_job_exits_130_leaves_nothing_and_can_be_run_again(tmp_path):
    events = tmp_path / "events.jsonl"
    os.mkfifo(events)
    process = start(tmp_path, [GOOD] * 20_000)
    with events.open() as following:
        next(line for line in following if '"progress"' in line)
        process.send_signal(signal.SIGINT)
        last = list(following)[-1]
    process.communicate(timeout=120)
    assert process.returncode == 130
    assert json.loads(last)["kind"] == "stopped"
    assert not list(tmp_path.glob("dataset*"))
    events.unlink()
    assert run(tmp_path, [GOOD])[0] == 0
