"""This machine as a host: jobs are children of this process, followed through their events file."""

import fcntl
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dflashctl.transport import http, process
from dflashctl.transport.base import Git, Job
from dflashctl.transport.tail import EventTail
from dflashctl_remote.spec.process import MARKER, ProcessToken


class LocalTransport:
    name = "local"

    def __init__(self, *, pause: Callable[[], None] = lambda: time.sleep(0.05)) -> None:
        self._pause = pause

    def python(self) -> str:
        return sys.executable

    def missing_modules(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in names if importlib.util.find_spec(name) is None)

    def start(self, job: Job) -> "LocalJob":
        job.log.parent.mkdir(parents=True, exist_ok=True)
        offset_bytes = job.events.stat().st_size if job.events.is_file() else 0
        with job.log.open("ab") as log:
            log_offset_bytes = log.tell()
            # A group of its own: a terminal's Ctrl-C reaches this process alone, which passes it on once.
            child = subprocess.Popen(
                job.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **dict(job.env)},
                process_group=None if job.is_detached else 0,
                start_new_session=job.is_detached,
            )
        # Before anybody collects it: until then even one that has ended can be asked who it was.
        token = process.token_of(child.pid, dict(job.env).get(MARKER, ""))
        if job.is_detached:
            # Collected when it ends, though nobody may wait for it: else it stays as a zombie while this process lives.
            threading.Thread(target=child.wait, daemon=True).start()
        return LocalJob(
            child, EventTail(job.events, self._pause, offset_bytes=offset_bytes), job.log, log_offset_bytes, token
        )

    def follow(self, events: Path, *, until: Callable[[], bool]) -> Iterator[Any]:
        return EventTail(events, self._pause).follow(until)

    def token_of(self, pid: int, marker: str) -> ProcessToken | None:
        return process.token_of(pid, marker)

    def presence(self, token: ProcessToken) -> process.Presence:
        return process.presence(token)

    def send(self, token: ProcessToken, number: signal.Signals) -> bool:
        return process.send(token, number)

    def wait_gone(self, token: ProcessToken, timeout_s: float) -> bool:
        return process.wait_gone(token, timeout_s)

    def family(self, token: ProcessToken) -> tuple[ProcessToken, ...]:
        return process.family(token)

    @contextmanager
    def lock(self, path: Path) -> Iterator[int | None]:
        with path.open("a+", encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                yield int(file.read().strip() or 0)
                return
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield None

    def is_port_free(self, port: int) -> bool:
        return http.is_port_free("127.0.0.1", port)

    def get(self, url: str, *, timeout_s: float) -> http.Reply:
        return http.get(url, timeout_s=timeout_s)

    def post(self, url: str, body: dict[str, Any], *, timeout_s: float) -> http.Reply:
        return http.post(url, body, timeout_s=timeout_s)

    def is_alive(self, pid: int, marker: str) -> bool:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            # Without /proc (macOS) the pid alone has to do.
            return not Path("/proc/self").exists() and _pid_exists(pid)
        return marker.encode() in command

    def git(self, folder: Path) -> Git | None:
        sha = _git(folder, "rev-parse", "HEAD")
        if not sha:
            return None
        return Git(sha=sha, is_dirty=bool(_git(folder, "status", "--porcelain", "--untracked-files=no")))


class LocalJob:
    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        tail: EventTail,
        log: Path,
        log_offset_bytes: int,
        token: ProcessToken | None,
    ) -> None:
        self._process = process
        self._tail = tail
        self._log = log
        self._log_offset_bytes = log_offset_bytes
        """What stands before is an earlier process's."""
        self._token = token

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def token(self) -> ProcessToken | None:
        return self._token

    def events(self, *, until: Callable[[], bool] | None = None) -> Iterator[Any]:
        return self._tail.follow(lambda: self._process.poll() is not None or (until is not None and until()))

    def interrupt(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def wait(self) -> int:
        return self._process.wait()

    def log_tail(self, num_lines: int) -> str:
        with self._log.open("rb") as log:
            log.seek(self._log_offset_bytes)
            lines = log.read().decode("utf-8", errors="replace").splitlines()
        return "\n".join(lines[-num_lines:])


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(("git", "-C", str(folder), *arguments), capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _pid_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
