"""Following a file that a run writes on any host: pulled by offset, so that a cut, a sleep or a rotation loses and
doubles nothing. A place is an offset in the whole stream, whatever was rotated away since.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflashctl.artifacts import RunRef
from dflashctl.errors import ArtifactError, HostUnreachable, JobFailed
from dflashctl.facts.host_runs import supervisor_functions
from dflashctl.transport.files import read_script
from dflashctl.transport.shell import Script, Shell
from dflashctl.transport.tail import parse_lines

PIECE_BYTES = 256 * 1024
WAIT_S = 2
"""How long one question waits on the host for something new."""
ANSWER_S = 15.0
"""A question that is not answered so long after it should be has lost its link."""
PATIENCE_S = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Pauses between attempts to reach a host again; the last one stays."""
GPUS_EVERY_S = 5.0


@dataclass(frozen=True)
class GpuUse:
    """One GPU now; None where the driver does not tell."""

    uuid: str
    name: str
    utilization_percent: float | None
    used_bytes: int | None
    total_bytes: int | None
    power_w: float | None
    temperature_c: float | None


@dataclass(frozen=True)
class Piece:
    """What a stream holds from an offset on, as far as one question carries it."""

    at: int
    """Offset of the first byte."""
    content: bytes
    end: int
    """Where the stream ended then."""
    has_process: bool
    """Some process of the run was written down: it is not just being started."""
    is_over: bool
    """No process of the run is left, so nothing more will come."""
    gpus: tuple[GpuUse, ...] = ()

    @property
    def is_last(self) -> bool:
        return self.is_over and self.at + len(self.content) >= self.end


def read_piece(
    shell: Shell, run: RunRef, name: str, offset: int, *, wait_s: int = 0, with_gpus: bool = False
) -> Piece | None:
    """From an offset on, or, below 0, so many bytes from the end. None: it was being rotated, ask again.

    Raises HostUnreachable, JobFailed if there is no such run, ArtifactError.
    """
    text = supervisor_functions("proc.sh") + read_script(Path(__file__).parent, "run_seen.sh", "host_stream.sh")
    values = (
        ("folder", str(run.folder)),
        ("name", name),
        ("offset", str(offset)),
        ("wait_s", str(wait_s)),
        ("limit", str(PIECE_BYTES)),
        ("with_gpus", "1" if with_gpus else "0"),
    )
    answer = shell.run(Script("stream", text, values), timeout_s=wait_s + ANSWER_S)
    if answer.code != 0:
        raise JobFailed(f"{run.folder / name} on {shell.name}: {answer.err.strip()}", host=shell.name)
    head, _, body = answer.out.partition(b"\n\n")
    content, _, trailer = body.rpartition(b"\nvalid=")
    if trailer != b"1\n":
        return None
    lines: dict[str, str] = {}
    gpus = []
    for line in head.decode("utf-8", "surrogateescape").split("\n"):
        key, _, value = line.partition("=")
        if key == "gpu":
            gpus.append(_gpu(value))
        lines[key] = value
    at, end = int(lines["at"]), int(lines["end"])
    if offset > end:
        raise ArtifactError(f"{run.folder / name} on {shell.name} ends at byte {end}, before the {offset} read so far")
    return Piece(at, content, end, bool(lines["token"]), lines["over"] == "1", tuple(gpus))


def follow(
    shell: Shell,
    run: RunRef,
    name: str,
    *,
    offset: int,
    say: Callable[[str], None],
    with_gpus: bool = False,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Piece]:
    """Pieces one after the other until no process of the run is left and all is read.

    A host that does not answer is asked again, without end: its run goes on without us. `say` is told of it once,
    and of bytes that were rotated away before they were read.
    """
    gpus_at_s = float("-inf")
    num_failed = 0
    while True:
        asks_gpus = with_gpus and clock() - gpus_at_s >= GPUS_EVERY_S
        try:
            piece = read_piece(shell, run, name, offset, wait_s=WAIT_S, with_gpus=asks_gpus)
        except HostUnreachable as error:
            if not num_failed:
                say(f"{error.message}; the run goes on without us, trying again")
            pause(PATIENCE_S[min(num_failed, len(PATIENCE_S) - 1)])
            num_failed += 1
            continue
        if num_failed:
            say(f"{shell.name} answers again")
            num_failed = 0
        if piece is None:
            continue
        if 0 <= offset < piece.at:
            say(f"{piece.at - offset:,} bytes of {name} were rotated away before they were read")
        if asks_gpus:
            gpus_at_s = clock()
        offset = piece.at + len(piece.content)
        yield piece
        if piece.is_last:
            return


def _gpu(line: str) -> GpuUse:
    uuid, name, *rest = [cell.strip() for cell in line.split(",")]
    use, used, total, power, temperature = [_number(cell) for cell in rest]
    return GpuUse(uuid, name, use, _mebibytes(used), _mebibytes(total), power, temperature)


def _number(cell: str) -> float | None:
    """None for `[N/A]` and its like."""
    try:
        return float(cell)
    except ValueError:
        return None


def _mebibytes(number: float | None) -> int | None:
    return None if number is None else int(number) * 2**20


class EventFeed:
    """Pieces of an events file in, whole events out; half a line waits for its other half."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: bytes | None = None

    def add(self, piece: Piece) -> list[Any]:
        """Raises ArtifactError for a line that is no event."""
        new = piece.content
        if self._held is None:
            # The first piece may begin within a line.
            new = new.partition(b"\n")[2] if piece.at else new
            self._held = b""
        whole, newline, self._held = (self._held + new).rpartition(b"\n")
        return parse_lines(whole + newline, self._path)
