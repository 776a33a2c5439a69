"""One reader and one writer, and the bytes between them: from pipe to pipe within the kernel, where Linux does that."""

import collections
import contextlib
import json
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from dflashctl.errors import JobFailed
from dflashctl.operations.relay.agent import Agent
from dflashctl.operations.relay.progress import Progress
from dflashctl.operations.relay.tree import Chunk
from dflashctl_remote.relay import wire

AHEAD = 3
"""Chunks that the reader is asked for before the first of them has gone: it is never without work."""
STALL_S = 60.0
"""A leg that moves nothing for so long is taken for dead."""
PIECE_BYTES = 1 << 20
_NOTHING_YET = (BlockingIOError, InterruptedError)


class SourceBad(Exception):
    """The source's file is not what it was: changed, vanished or unreadable, in the reader's words."""

    def __init__(self, file: int, why: str, text: str) -> None:
        super().__init__(text)
        self.file, self.why, self.text = file, why, text


class TargetBad(Exception):
    """The target could not take a chunk. `is_base`: for what it had of it already, which is not what it should be."""

    def __init__(self, told: Any) -> None:
        super().__init__(told["text"])
        self.is_base = bool(told.get("is_base"))


class Stopped(Exception):
    """Another has ended the relay."""


@contextlib.contextmanager
def _sense(host: str) -> Iterator[None]:
    """Who says what no agent of ours says is not listened to any further."""
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise JobFailed(
            f"{host}: the relay's agent there talks nonsense ({error}); nothing was published", host=host
        ) from error


class Lane:
    """Takes chunks until there are none, in a thread of its own. `on_done` is called for each that is on the target."""

    def __init__(
        self,
        reader: Agent,
        writer: Agent,
        take: Callable[[], Chunk | None],
        on_done: Callable[[Chunk, str], None],
        progress: Progress,
        encode: str,
    ) -> None:
        self.reader, self.writer = reader, writer
        self._take, self._on_done, self._progress, self._encode = take, on_done, progress, encode
        self._unconfirmed: dict[int, tuple[Chunk, str]] = {}
        self._lock = threading.Condition()
        self._problem: BaseException | None = None
        self._is_closed = False

    def run(self) -> None:
        """Raises SourceBad, TargetBad, HostUnreachable, JobFailed."""
        with _sense(self.reader.host):
            self._run()

    def _run(self) -> None:
        asked: collections.deque[Chunk] = collections.deque()
        is_more = True
        while True:
            while is_more and len(asked) < AHEAD:
                chunk = self._take()
                if chunk is None:
                    is_more = False
                else:
                    self._ask(chunk)
                    asked.append(chunk)
            if not asked:
                break
            self._forward(asked.popleft())
        with self._lock:
            while self._unconfirmed and self._problem is None:
                if not self._lock.wait(STALL_S):
                    raise self.writer.lost()
        self._raise_problem()

    def heard(self, fields: dict[str, Any], payload: Any) -> None:
        """What the writer says."""
        with self._lock:
            if fields.get("gone"):
                self._problem = self._problem or (self.writer.lost() if not self._is_closed else EOFError())
                done = None
            elif fields.get("bad"):
                self._problem = self._problem or TargetBad(payload)
                done = None
            else:
                done = self._unconfirmed[fields["id"]]
            self._lock.notify_all()
        if done is not None:
            self._on_done(*done)
            # Only now: whoever finds nothing unconfirmed takes all for done.
            with self._lock:
                del self._unconfirmed[done[0].number]
                self._lock.notify_all()

    def cut(self) -> None:
        """If `run` does not end by `stop`: whoever waits in a pipe is woken."""
        for agent in (self.reader, self.writer):
            agent.stream.cut()

    def stop(self) -> None:
        """Lets `run` end soon. Whoever waits for that may then `close`."""
        with self._lock:
            self._is_closed = True
            self._problem = self._problem or Stopped()
            self._lock.notify_all()

    def close(self) -> None:
        """Only after `run` has ended."""
        self._is_closed = True
        for agent in (self.reader, self.writer):
            agent.close()

    def _raise_problem(self) -> None:
        if self._problem is not None:
            raise self._problem

    def _ask(self, chunk: Chunk) -> None:
        if chunk.kind == "same":
            return
        question = {**chunk.question(), "encode": self._encode}
        if chunk.kind == "base":
            question["bases"] = chunk.source_bases()
        self.reader.tell("read", question, id=chunk.number)

    def _forward(self, chunk: Chunk) -> None:
        self._raise_problem()
        place = {**chunk.question(), "key": chunk.key}
        if chunk.kind == "same":
            place["bases"] = [base[:2] for base in chunk.target_bases()]
            self._expect(chunk, "same")
            self.writer.tell("copy", place, id=chunk.number)
            return
        if chunk.kind == "base":
            place["bases"] = chunk.target_bases()
        head = self._read(wire.HEADER_BYTES)
        told = wire.parse(head)
        self._check(told)
        if told["id"] != chunk.number or told.get("n", 0) > chunk.size:
            raise ValueError(f"chunk {told['id']} of {told.get('n', 0)} bytes for {chunk.number} of {chunk.size}")
        self._expect(chunk, str(told["how"]))
        try:
            with self.writer.writing:
                wire.write_all(
                    self.writer.stream.stdin_fd, wire.message({"op": "write", "id": chunk.number}, place) + head
                )
                self._move(int(told.get("n", 0)))
                end = self._read(wire.HEADER_BYTES)
                verdict = wire.parse(end)
                # The words that a refusal has with it are for this side alone.
                wire.write_all(self.writer.stream.stdin_fd, wire.header(id=chunk.number, ok=verdict.get("ok", 0)))
        except OSError as error:
            raise self.writer.lost() from error
        self._progress.add(sent_bytes=int(told.get("n", 0)))
        self._check(verdict)

    def _expect(self, chunk: Chunk, how: str) -> None:
        with self._lock:
            self._unconfirmed[chunk.number] = chunk, how

    def _check(self, told: dict[str, Any]) -> None:
        if told.get("bad"):
            body = json.loads(self._read(int(told["n"])))
            raise SourceBad(int(body["file"]), body["why"], body["text"])

    def _read(self, num_bytes: int) -> bytes:
        """From the reader; counts how long it keeps us waiting."""
        pieces = []
        while num_bytes:
            self._wait(self.reader, select.POLLIN)
            try:
                piece = os.read(self.reader.stream.stdout_fd, num_bytes)
            except OSError as error:
                raise self.reader.lost() from error
            if not piece:
                raise self.reader.lost()
            pieces.append(piece)
            num_bytes -= len(piece)
        return b"".join(pieces)

    def _move(self, num_bytes: int) -> None:
        source, target = self.reader.stream.stdout_fd, self.writer.stream.stdin_fd
        while num_bytes:
            moved = _splice(source, target, min(num_bytes, PIECE_BYTES))
            if moved < 0:
                # One of them keeps the other waiting: which one is asked only then.
                self._wait(self.reader, select.POLLIN)
                self._wait(self.writer, select.POLLOUT)
            elif moved == 0:
                raise self.reader.lost()
            num_bytes -= max(moved, 0)

    def _wait(self, agent: Agent, event: int) -> None:
        descriptor = agent.stream.stdout_fd if event == select.POLLIN else agent.stream.stdin_fd
        poll = select.poll()
        poll.register(descriptor, event)
        self._raise_problem()
        if poll.poll(0):
            return
        began_s = time.monotonic()
        while not poll.poll(500):
            self._raise_problem()
            if time.monotonic() - began_s > STALL_S:
                raise agent.lost()
        waited_s = time.monotonic() - began_s
        self._progress.add(**{"source_wait_s" if agent is self.reader else "target_wait_s": waited_s})


def _splice(source: int, target: int, num_bytes: int) -> int:
    """Gives how many bytes went, 0 at the end, -1 if it has to be waited again."""
    if hasattr(os, "splice"):
        with contextlib.suppress(*_NOTHING_YET):
            return os.splice(source, target, num_bytes, flags=os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE)
        return -1
    if not select.select([source], [], [], 0)[0]:
        return -1
    data = os.read(source, min(num_bytes, 1 << 16))
    wire.write_all(target, data)
    return len(data)


class DirectLane:
    """The same where the source reaches the target by itself: what passes here are only the words about it."""

    def __init__(
        self,
        pusher: Agent,
        take: Callable[[], Chunk | None],
        on_done: Callable[[Chunk, str], None],
        progress: Progress,
        encode: str,
    ) -> None:
        self.pusher = pusher
        self._take, self._on_done, self._progress, self._encode = take, on_done, progress, encode
        self._unconfirmed: dict[int, Chunk] = {}
        self._hows: dict[int, str] = {}
        self._lock = threading.Condition()
        self._problem: BaseException | None = None

    def run(self) -> None:
        """Raises as `Lane.run`."""
        with _sense(self.pusher.host):
            self._run()

    def _run(self) -> None:
        while True:
            with self._lock:
                while len(self._unconfirmed) >= AHEAD and self._problem is None:
                    self._wait()
            self._raise_problem()
            chunk = self._take()
            if chunk is None:
                break
            with self._lock:
                self._unconfirmed[chunk.number] = chunk
            place = {**chunk.question(), "key": chunk.key}
            question = {**chunk.question(), "encode": self._encode, "place": place}
            if chunk.kind == "base":
                question["bases"], place["bases"] = chunk.source_bases(), chunk.target_bases()
            self.pusher.tell("read", question, id=chunk.number)
        with self._lock:
            while self._unconfirmed and self._problem is None:
                self._wait()
        self._raise_problem()

    def heard(self, fields: dict[str, Any], payload: Any) -> None:
        done: Chunk | None = None
        with self._lock:
            if fields.get("gone"):
                self._problem = self._problem or self.pusher.lost()
            elif fields.get("bad"):
                is_source = "file" in payload
                self._problem = self._problem or (
                    SourceBad(int(payload["file"]), payload["why"], payload["text"])
                    if is_source
                    else TargetBad(payload)
                )
            elif "sent" in fields:
                self._hows[fields["id"]] = fields["how"]
                self._progress.add(sent_bytes=int(fields["sent"]))
            elif "on" not in fields:
                done = self._unconfirmed[fields["id"]]
            self._lock.notify_all()
        if done is not None:
            self._on_done(done, self._hows.pop(done.number, "raw"))
            with self._lock:
                del self._unconfirmed[done.number]
                self._lock.notify_all()

    def cut(self) -> None:
        self.pusher.stream.cut()

    def stop(self) -> None:
        with self._lock:
            self._problem = self._problem or Stopped()
            self._lock.notify_all()

    def close(self) -> None:
        self.pusher.close()

    def _wait(self) -> None:
        if not self._lock.wait(STALL_S):
            raise self.pusher.lost()

    def _raise_problem(self) -> None:
        if self._problem is not None:
            raise self._problem
