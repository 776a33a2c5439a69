"""Following a job to its end: a live board on a terminal, lines elsewhere, and what Ctrl-C does."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.live import Live

from dflashctl.cli.output import Output
from dflashctl.errors import Interrupted, JobFailed
from dflashctl.transport.base import JobHandle
from dflashctl.views.job import JobBoard, Lines
from dflashctl.views.training import TrainingBoard
from dflashctl_remote.spec.events import Failed, Finished, Stopped

GRACE_S = 120.0
"""A checkpoint can take a minute to save."""


@dataclass(frozen=True)
class Ended:
    """How a job ended that did not fail."""

    about: dict[str, Any]
    stopped: Stopped | None
    wall_s: float


class Watcher:
    """Hands each event to the board or to the lines."""

    def __init__(self, out: Output, board: JobBoard | TrainingBoard) -> None:
        self._out = out
        self._board = board
        self._lines = Lines()
        self.last: Any = None

    def add(self, event: Any) -> None:
        self.last = event
        self._board.add(event)
        if not self._out.is_live:
            line = self._lines.line_of(event)
            if line is not None:
                self._out.say(line)

    def remark(self, text: str, until_s: float | None = None) -> None:
        self._board.remark, self._board.until_s = text, until_s
        if not self._out.is_live:
            self._out.say(text)

    @contextmanager
    def shown(self) -> Iterator[None]:
        if not self._out.is_live:
            yield
            return
        with Live(self._board, console=self._out.progress, refresh_per_second=8):
            yield


def follow_to_end(
    handle: JobHandle,
    watcher: Watcher,
    *,
    host: str,
    resume_hint: str,
    grace_s: float = GRACE_S,
) -> Ended:
    """Watch a job until it has ended.

    Ctrl-C asks the job to stop and waits `grace_s` for it; a second one, or the end of the wait, kills it.
    Raises JobFailed with the job's own message and exit code, Interrupted after Ctrl-C.
    """
    began_s = time.time()
    with watcher.shown():
        is_interrupted = _watch(handle, watcher, grace_s)
    exit_code = handle.wait()
    if isinstance(watcher.last, Failed):
        failed = watcher.last
        raise JobFailed(
            failed.message,
            host=host,
            exit_code=failed.exit_code,
            hint=failed.hint,
            traceback=failed.traceback,
        )
    if is_interrupted:
        raise Interrupted("interrupted; what is complete on disk stays", hint=resume_hint)
    if isinstance(watcher.last, Stopped) and exit_code == 0:
        return Ended({}, watcher.last, time.time() - began_s)
    if isinstance(watcher.last, Stopped):
        raise Interrupted(f"the job was stopped from elsewhere: {watcher.last.reason}", hint=resume_hint)
    if isinstance(watcher.last, Finished) and exit_code == 0:
        return Ended(watcher.last.about, None, time.time() - began_s)
    raise JobFailed(_last_words(handle, exit_code, host), host=host, hint=resume_hint)


def _watch(handle: JobHandle, watcher: Watcher, grace_s: float) -> bool:
    """Whether Ctrl-C came."""
    try:
        for event in handle.events():
            watcher.add(event)
        return False
    except KeyboardInterrupt:
        handle.interrupt()
    deadline_s = time.time() + grace_s
    watcher.remark("stopping in good order; Ctrl-C again to kill", until_s=deadline_s)
    try:
        for event in handle.events(until=lambda: time.time() > deadline_s):
            watcher.add(event)
    except KeyboardInterrupt:
        watcher.remark("killed")
    handle.kill()
    return True


def _last_words(handle: JobHandle, exit_code: int, host: str) -> str:
    how = f"killed by signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
    tail = handle.log_tail(5).strip()
    said = f"; the end of its log:\n{tail}" if tail else "; its log is empty"
    return f"the job on {host} ended without a last event ({how}){said}"
