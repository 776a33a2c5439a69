"""The product's own jobs as child processes, and their events as they come."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def started(job: str, spec: Path, *, num_threads: int | None = None) -> Iterator["Job"]:
    """`python -m dflashctl_remote.entry.JOB` on a spec file; ended with SIGTERM if it is left running."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "remote"), "TOKENIZERS_PARALLELISM": "false"}
    if num_threads is not None:
        environment["OMP_NUM_THREADS"] = str(num_threads)
    events = spec.with_name("events.jsonl")
    command = [sys.executable, "-m", f"dflashctl_remote.entry.{job}", "--spec", str(spec), "--events", str(events)]
    with spec.with_name("output.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        yield Job(process, events)
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()


class Job:
    def __init__(self, process: subprocess.Popen[bytes], events: Path) -> None:
        self._process = process
        self._path = events
        self._read_bytes = events.stat().st_size if events.is_file() else 0

    def is_running(self) -> bool:
        return self._process.poll() is None

    def new_events(self) -> list[dict[str, Any]]:
        """Those that were written whole since the last call, or since the start."""
        if not self._path.is_file():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        return [json.loads(line) for line in whole.splitlines()]

    def refuse_failure(self) -> None:
        """Raises SystemExit with the job's own last words, once it has ended badly."""
        code = self._process.wait()
        if code != 0:
            log = self._path.with_name("output.log").read_text(encoding="utf-8", errors="replace")
            raise SystemExit(f"{self._path.parent}: the job ended with exit code {code}:\n{log[-3000:]}")
