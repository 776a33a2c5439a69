"""Being asked to stop: by Ctrl-C, by SIGTERM, or by a file `stop.requested` in the run's folder.

The first signal only leaves a note that the loop reads between batches. A second Ctrl-C raises KeyboardInterrupt
at once; SIGTERM never does, however often it comes, since whoever sends it grants a grace and kills after it.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

STOP_FILE = "stop.requested"
WRITER_THREAD = "writer"
"""Of the one that writes checkpoints."""


def leave(code: int) -> NoReturn:
    """End the process. While a checkpoint is still being written nothing is taken down in order: native code of a
    thread that the interpreter ends under it aborts the process, and 134 says nothing of what happened.
    """
    if any(thread.name == WRITER_THREAD and thread.is_alive() for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


class StopRequest:
    """While open, signals are noted here. `exit_code`: 130 for a signal, 0 for the file, whatever came beside it.

    A supervisor that is told to stop a run finds the file first and then sends SIGTERM: the file says who wants it.
    """

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / STOP_FILE
        self._signal: signal.Signals | None = None
        self._was_taken = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def is_asked(self) -> bool:
        return self._signal is not None or self._path.exists()

    @property
    def exit_code(self) -> int:
        by_file = self._was_taken or self._path.exists()
        return 0 if by_file and self._signal != signal.SIGINT else 130 if self._signal is not None else 0

    def reason(self) -> str:
        """Who asked, in words."""
        if self._signal == signal.SIGINT:
            return "interrupted (Ctrl-C)"
        if self._signal == signal.SIGTERM and not self._path.exists():
            return "terminated (SIGTERM)"
        try:
            who = json.loads(self._path.read_text(encoding="utf-8"))["who"]
        except (OSError, ValueError, KeyError, TypeError):
            return f"{STOP_FILE} was found"
        return f"asked to stop by {who}"

    def take(self) -> None:
        """Remove the file, so that the same command resumes the run."""
        self._was_taken = self._was_taken or self._path.exists()
        self._path.unlink(missing_ok=True)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._signal == signal.SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._signal = signal.Signals(number)
