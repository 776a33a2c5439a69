"""The job as a process: how it begins, how it says that it serves, and how it ends."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).parents[3]
TARGET = ROOT / "dflashctl" / "assets" / "demo_target"
LONG_WAIT_S = 60.0
BODY = {"model": "demo", "prompt": "def f():", "max_tokens": 1900, "ignore_eos": True, "stream": True}


class Job:
    """A started server whose events are read as they come, through a pipe."""

    def __init__(self, folder: Path, spec: dict[str, Any]) -> None:
        (folder / "spec.json").write_text(json.dumps({"target": str(TARGET), "served_name": "demo", "port": 0} | spec))
        os.mkfifo(folder / "events.jsonl")
        argv = [sys.executable, "-m", "dflashctl_remote.entry.serve", "--spec", str(folder / "spec.json")]
        self.process = subprocess.Popen(
            [*argv, "--events", str(folder / "events.jsonl")],
            env={**os.environ, "PYTHONPATH": str(ROOT / "remote")},
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines = (folder / "events.jsonl").open()
        self.events = map(json.loads, self._lines)

    def wait_for(self, kind: str) -> dict[str, Any]:
        return next(event for event in self.events if event["kind"] == kind)

    def end(self) -> tuple[int, str]:
        """(exit code, what it said on stderr)."""
        _, stderr = self.process.communicate(timeout=LONG_WAIT_S)
        return self.process.returncode, stderr

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self._lines.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    with contextlib.ExitStack() as jobs:

        def begin(**spec: Any) -> Job:
            job = Job(tmp_path, {"device": "cpu", "num_threads": 1} | spec)
            jobs.callback(job.close)
            return job

        yield begin


def test_sigterm_ends_answers_with_an_error_and_the_job_with_0(start: Callable[..., Job]) -> None:
    job = start()
    serving = job.wait_for("serving")
    assert (serving["address"], serving["model"], serving["num_draft_tokens"]) == ("127.0.0.1", "demo", 0)
    url = f"http://127.0.0.1:{serving['port']}/v1/completions"
    with httpx.stream("POST", url, json=BODY, timeout=LONG_WAIT_S) as answer:
        lines = (line for line in answer.iter_lines() if line)
        next(lines)
        job.process.send_signal(signal.SIGTERM)
        *_, last = lines
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "shutting_down"
    assert job.wait_for("stopped")["reason"] == "stopped by SIGTERM"
    code, stderr = job.end()
    assert code == 0
    assert "Traceback" not in stderr
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", serving["port"]))


def test_ctrl_c_while_loading_is_a_clean_end_too(start: Callable[..., Job]) -> None:
    job = start()
    notice = job.wait_for("notice")
    assert "for correctness, small machines and tests" in notice["message"]
    job.process.send_signal(signal.SIGINT)
    assert job.wait_for("stopped")["reason"] == "stopped by Ctrl-C"
    assert job.end()[0] == 0


def test_a_taken_port_is_one_sentence_before_anything_is_loaded(start: Callable[..., Job]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        # Not even the target is looked at.
        job = start(port=port, target="/nowhere", device="auto")
        (failed,) = job.events
        code, stderr = job.end()
    assert (code, failed["kind"], failed["error"]) == (2, "failed", "BadInput")
    assert stderr == (
        f"serve: wanted to serve on 127.0.0.1 port {port}, found the port taken "
        "(stop what listens there, or set another port)\n"
    )
