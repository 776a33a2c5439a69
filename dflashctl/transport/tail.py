"""Reading an events file while it grows."""

import codecs
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dflashctl.errors import ArtifactError
from dflashctl_remote.spec.events import parse_event


class EventTail:
    """A place in an events file. An iteration that breaks off loses nothing: the next one goes on from there."""

    def __init__(self, path: Path, pause: Callable[[], None], *, offset_bytes: int = 0) -> None:
        self._path = path
        self._pause = pause
        self._offset_bytes = offset_bytes
        self._pending: deque[Any] = deque()

    def follow(self, is_over: Callable[[], bool]) -> Iterator[Any]:
        """Events until `is_over`, which is asked before each read, so that a job's last words are not missed."""
        while True:
            was_over = is_over()
            self._read()
            had_any = bool(self._pending)
            while self._pending:
                yield self._pending.popleft()
            if was_over:
                return
            if not had_any:
                self._pause()

    def _read(self) -> None:
        """Whole new lines; half a line stays in the file for the next time."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset_bytes)
                new = file.read()
        except FileNotFoundError:
            return
        whole, newline, _ = new.rpartition(b"\n")
        if not newline:
            return
        self._offset_bytes += len(whole) + 1
        self._pending.extend(_parse(line, self._path) for line in whole.split(b"\n") if line.strip())


def read_events(path: Path) -> list[Any]:
    """All whole lines of an events file, oldest first; empty if there is no file yet."""
    return list(EventTail(path, lambda: None).follow(lambda: True))


def read_last_events(path: Path, num_bytes: int) -> list[Any]:
    """The whole lines among the last so many bytes, oldest first; empty if there is no file yet."""
    try:
        size_bytes = path.stat().st_size
    except FileNotFoundError:
        return []
    if size_bytes <= num_bytes:
        return read_events(path)
    with path.open("rb") as file:
        file.seek(size_bytes - num_bytes)
        _, _, tail = file.read().partition(b"\n")
    whole, _, _ = tail.rpartition(b"\n")
    return [_parse(line, path) for line in whole.split(b"\n") if line.strip()]


def _parse(line: bytes, path: Path) -> Any:
    try:
        return parse_event(line)
    except ValidationError as error:
        raise ArtifactError(
            f"{path} holds a line that is not an event of this version: {line[:80]!r}",
            hint="read it with the dflashctl that wrote it",
        ) from error


def follow_text(
    path: Path, *, offset_bytes: int, is_over: Callable[[], bool], pause: Callable[[], None]
) -> Iterator[str]:
    """What is appended to a log from the offset on, until `is_over`, which is asked before each read."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    while True:
        was_over = is_over()
        with path.open("rb") as file:
            file.seek(offset_bytes)
            new = file.read()
        offset_bytes += len(new)
        if new:
            yield decoder.decode(new)
        elif was_over:
            return
        else:
            pause()
