import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dflashctl_remote.entry.door import failure_of, read_spec
from dflashctl_remote.spec.base import Spec
from dflashctl_remote.spec.errors import BadInput

BUNDLE = Path(__file__).parents[3] / "remote"

PRELUDE = """
import os, signal
from pathlib import Path
from dflashctl_remote.entry.door import StoppedEarly, run_entry
from dflashctl_remote.spec.base import Spec
from dflashctl_remote.spec.errors import ArtifactCorrupt

class Job(Spec):
    size: int

def body(spec, events):
"""


def run_job(tmp_path: Path, body: str, spec: str = '{"size": 3}') -> tuple[int, str, list[dict]]:
    """Run a job whose body is this text as a process; returns its exit code, stderr and events."""
    script = tmp_path / "job.py"
    script.write_text(PRELUDE + textwrap.indent(body, "    ") + "\nrun_entry('job', Job, body)\n")
    (tmp_path / "spec.json").write_text(spec)
    events = tmp_path / "events.jsonl"
    arguments = ["--spec", str(tmp_path / "spec.json"), "--events", str(events)]
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        env={**os.environ, "PYTHONPATH": str(BUNDLE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr, [json.loads(line) for line in events.read_text().splitlines()]


def test_finished_job_exits_0_and_says_what_it_made(tmp_path):
    code, stderr, events = run_job(tmp_path, "return {'made': spec.size}")
    assert (code, stderr) == (0, "")
    assert [e["kind"] for e in events] == ["started", "finished"]
    assert events[0]["job"] == "job"
    assert events[1]["about"] == {"made": 3}


def test_bundle_error_keeps_its_exit_code_and_hint(tmp_path):
    code, stderr, events = run_job(tmp_path, "raise ArtifactCorrupt('bad bytes', hint='copy again')")
    assert code == 5
    assert stderr == "job: bad bytes (copy again)\n"
    assert (events[-1]["error"], events[-1]["hint"], events[-1]["exit_code"]) == (
        "ArtifactCorrupt",
        "copy again",
        5,
    )
    assert events[-1]["traceback"] == ""


def test_bug_exits_1_with_its_traceback_in_the_event_only(tmp_path):
    code, stderr, events = run_job(tmp_path, "return {}[spec.size]")
    assert code == 1
    assert stderr == "job: bug: KeyError: 3 (the traceback is in the events file)\n"
    assert "return {}[spec.size]" in events[-1]["traceback"]


def test_wrong_spec_exits_2_naming_key_and_value(tmp_path):
    code, stderr, events = run_job(tmp_path, "return {}", spec='{"size": "big"}')
    assert code == 2
    assert "spec.json: size: " in stderr
    assert "found 'big'" in stderr
    assert [e["kind"] for e in events] == ["failed"]


def test_unknown_key_of_a_spec_is_named(tmp_path):
    path = tmp_path / "spec.json"
    path.write_text('{"seed": 1, "sede": 2}')

    class Job(Spec):
        seed: int

    with pytest.raises(BadInput, match="sede: Extra inputs are not permitted, found 2"):
        read_spec(path, Job)


def test_missing_spec_exits_2(tmp_path):
    with pytest.raises(BadInput, match=r"cannot read the spec .*none\.json: No such file"):
        read_spec(tmp_path / "none.json", Spec)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signal_stops_with_130_after_cleaning_up(tmp_path, name):
    body = f"""
try:
    os.kill(os.getpid(), signal.{name})
    signal.pause()
finally:
    (Path(__file__).parent / 'cleaned').touch()
"""
    code, _, events = run_job(tmp_path, body)
    assert code == 130
    assert events[-1]["kind"] == "stopped"
    assert (tmp_path / "cleaned").exists()


def test_stop_on_request_keeps_checkpoint_and_code(tmp_path):
    code, _, events = run_job(tmp_path, "raise StoppedEarly('asked', checkpoint='step-3', exit_code=0)")
    assert code == 0
    assert (events[-1]["kind"], events[-1]["reason"], events[-1]["checkpoint"]) == (
        "stopped",
        "asked",
        "step-3",
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_full_disk_is_one_sentence_with_the_code_of_a_failed_job(tmp_path):
    code, stderr, events = run_job(tmp_path, "Path('/dev/full').write_bytes(b'x')")
    assert code == 4
    assert "the disk is full" in stderr
    assert events[-1]["exit_code"] == 4


def test_full_disk_names_the_file():
    failed = failure_of(OSError(28, "No space left on device", "/data/out.bin"))
    assert "/data/out.bin" in failed.message
    assert failed.traceback == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_events_that_cannot_be_written_still_leave_a_sentence_and_a_code(tmp_path):
    (tmp_path / "events.jsonl").symlink_to("/dev/full")
    script = tmp_path / "job.py"
    script.write_text(PRELUDE + "    return {}\nrun_entry('job', Job, body)\n")
    (tmp_path / "spec.json").write_text('{"size": 3}')
    done = subprocess.run(
        [sys.executable, str(script), "--spec", "spec.json", "--events", "events.jsonl"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(BUNDLE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 4
    assert done.stderr.startswith("job: the disk is full")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_full_disk_under_events_and_log_still_leaves_the_code(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(PRELUDE + "    return {}\nrun_entry('job', Job, body)\n")
    (tmp_path / "spec.json").write_text('{"size": 3}')
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, str(script), "--spec", "spec.json", "--events", "/dev/full"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(BUNDLE)},
            stdout=full,
            stderr=full,
            timeout=60,
            check=False,
        )
    assert done.returncode == 4
