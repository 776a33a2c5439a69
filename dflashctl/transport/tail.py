"""Reading an events file while it grows."""

import codecs
import mmap
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
    return parse_lines(read_tail(path, num_bytes)[1], path)


def read_tail(path: Path, num_bytes: int) -> tuple[int, bytes]:
    """About the last so many bytes from the begin of a line on, and their offset; nothing if there is no file yet."""
    try:
        size_bytes = path.stat().st_size
    except FileNotFoundError:
        return 0, b""
    with path.open("rb") as file:
        begin = max(0, size_bytes - num_bytes)
        file.seek(begin)
        if begin:
            begin += len(file.readline())
        return begin, file.read()


def parse_lines(content: bytes, path: Path) -> list[Any]:
    """The events in a piece of a file that begins with a line; half a line at its end is left out."""
    whole, _, _ = content.rpartition(b"\n")
    return [_parse(line, path) for line in whole.split(b"\n") if line.strip()]


def find_last_event(path: Path, kind: str) -> Any | None:
    """The newest event of a kind, looked for from the end; only lines that name the kind are parsed."""
    if not path.is_file() or not path.stat().st_size:
        return None
    mark = f'"kind":"{kind}"'.encode()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        end = text.rfind(b"\n") + 1
        while (at := text.rfind(mark, 0, end)) >= 0:
            start = text.rfind(b"\n", 0, at) + 1
            event = _parse(text[start : text.find(b"\n", at)], path)
            if event.kind == kind:
                return event
            end = start
    return None


def read_across(path: Path, *, num_pieces: int, piece_bytes: int) -> list[list[Any]]:
    """The whole lines in pieces spread evenly over the file, oldest first; one list of all where that is no more."""
    if not path.is_file():
        return []
    size_bytes = path.stat().st_size
    if size_bytes <= num_pieces * piece_bytes:
        return [read_events(path)]
    pieces = []
    with path.open("rb") as file:
        for number in range(num_pieces):
            offset_bytes = (size_bytes - piece_bytes) * number // (num_pieces - 1)
            file.seek(offset_bytes)
            lines = file.read(piece_bytes).split(b"\n")[(1 if offset_bytes else 0) : -1]
            pieces.append([_parse(line, path) for line in lines if line.strip()])
    return pieces


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
