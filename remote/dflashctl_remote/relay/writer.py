"""Puts chunks where they belong in the tree that is being built, and writes down which are there."""

from __future__ import annotations

import collections
import errno
import fcntl
import os
from typing import Any

from dflashctl_remote.relay import codec, wire
from dflashctl_remote.relay.agent import STALL_S, Line, Refused, reason, watch, within
from dflashctl_remote.relay.reader import MANY, hole_covers, read_range

MOST_OPEN = 64
STEP_BYTES = 1 << 20


class BaseGone(Exception):
    """What is here already, and was to be built upon, is not here any more."""


class Writer:
    def __init__(self, line: Line) -> None:
        self.line = line
        self.files: list[str] = []
        self.tree = ""
        self.journal = -1
        self.writers = -1
        self.open: collections.OrderedDict[int, int] = collections.OrderedDict()
        self.room = bytearray(STEP_BYTES)
        self.left = 0
        """Of a payload, what is still to be read."""

    def answer(self, fields: dict[str, Any], asked: Any) -> None:
        op = fields["op"]
        if op == "open":
            part = asked["part"]  # by its link of this try, which is gone once that is over
            # Shared by all that write; whoever takes it for himself knows that none of them is left.
            self.writers = os.open(os.path.join(part, "writers"), os.O_RDWR | os.O_CLOEXEC)
            fcntl.flock(self.writers, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self.journal = os.open(os.path.join(part, "journal"), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            self.tree, self.files = os.path.join(part, "tree"), [within(path) for path in asked["files"]]
            self.line.say({"methods": list(codec.available())}, op=op)
        elif op == "write":
            self.write(int(fields["id"]), asked)
        elif op == "copy":
            self.copy(int(fields["id"]), asked)
        else:
            raise Refused("op", f"unknown question {op!r}")

    def write(self, number: int, asked: dict[str, Any]) -> None:
        """The source's own messages follow: one that has the bytes, and one that says whether they count."""
        watch(STALL_S)
        told = wire.parse(wire.read_exactly(self.line.asked, wire.HEADER_BYTES))
        self.left = int(told.get("n", 0))
        problem = ""
        is_base = told["how"] == "base"
        try:
            if told["how"] == "raw":
                if self.left != asked["size"]:
                    raise ValueError(f"{self.left} bytes came, {asked['size']} were asked for")
                if len(asked["pieces"]) > MANY:
                    self.put(asked, self.taken(self.left))
                for index, offset, length in asked["pieces"] if self.left else ():
                    self.pour(index, offset, length)
            elif self.left > asked["size"]:
                raise ValueError(f"{self.left} bytes came for {asked['size']}")
            else:
                self.put(asked, self.decoded(told["how"], self.taken(self.left), asked))
        except BaseGone as gone:
            problem = str(gone)
        except OSError as error:
            problem, is_base = reason(error), False
        except ValueError as error:
            problem = str(error)
        while self.left:
            self.taken(min(self.left, STEP_BYTES))
        watch(STALL_S)
        verdict = wire.parse(wire.read_exactly(self.line.asked, wire.HEADER_BYTES))
        if problem:
            self.line.say({"text": problem, "is_base": is_base}, id=number, bad=1)
        elif verdict.get("ok") == 1:
            self.note(number, asked["key"])

    def taken(self, num_bytes: int) -> bytes:
        """Of the payload; slow is not dead."""
        pieces = []
        while num_bytes:
            watch(STALL_S)
            piece = wire.read_some(self.line.asked, min(num_bytes, STEP_BYTES))
            self.left -= len(piece)
            num_bytes -= len(piece)
            pieces.append(piece)
        return b"".join(pieces)

    def note(self, number: int, key: str) -> None:
        try:
            wire.write_all(self.journal, (key + "\n").encode())
        except OSError as error:
            self.line.say({"text": reason(error)}, id=number, bad=1)
            return
        self.line.say(id=number, ok=1)

    def copy(self, number: int, asked: dict[str, Any]) -> None:
        """From a file that is here already, by its place in that."""
        try:
            for (index, offset, length), (path, base_offset) in zip(asked["pieces"], asked["bases"]):  # noqa: B905
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    copy_range(descriptor, base_offset, self.descriptor(index), offset, length)
                finally:
                    os.close(descriptor)
        except OSError as error:
            is_base = error.errno in (errno.ENOENT, errno.EIO)
            self.line.say({"text": reason(error), "is_base": is_base}, id=number, bad=1)
            return
        self.note(number, asked["key"])

    def decoded(self, how: str, stored: bytes, asked: dict[str, Any]) -> Any:
        size = asked["size"]
        if how == "zeros":
            return None
        base = None
        if how == "base":
            try:
                base = b"".join(read_range(*piece) for piece in asked["bases"])
            except OSError as error:
                raise BaseGone(f"{error.filename}: {reason(error)}") from None
        return codec.decode(stored, size, asked["width"], base)

    def put(self, asked: dict[str, Any], data: Any) -> None:
        at = 0
        view = None if data is None else memoryview(data)
        for index, offset, length in asked["pieces"]:
            descriptor = self.descriptor(index)
            if view is None:
                clear(descriptor, offset, length)
                continue
            end, shift = at + length, offset - at
            while at < end:
                at += os.pwrite(descriptor, view[at:end], at + shift)

    def pour(self, index: int, offset: int, length: int) -> None:
        """From the pipe to its place."""
        descriptor = self.descriptor(index)
        view = memoryview(self.room)
        since_watched = STEP_BYTES
        while length:
            if since_watched >= STEP_BYTES:
                watch(STALL_S)
                since_watched = 0
            got = os.readv(self.line.asked, [view[: min(length, STEP_BYTES)]])
            if not got:
                raise EOFError("the operator has gone")
            self.left -= got
            length -= got
            since_watched += got
            at = 0
            while at < got:
                at += os.pwrite(descriptor, view[at:got], offset + at)
            offset += got

    def descriptor(self, index: int) -> int:
        if index in self.open:
            self.open.move_to_end(index)
            return self.open[index]
        path = os.path.join(self.tree, self.files[index])
        # Made by the keeper; nothing is followed, nothing new comes into being here.
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self.open[index] = descriptor
        while len(self.open) > MOST_OPEN:
            os.close(self.open.popitem(last=False)[1])
        return descriptor

    def end(self) -> None:
        for descriptor in self.open.values():
            os.close(descriptor)


def clear(descriptor: int, offset: int, length: int) -> None:
    """Zeros. Where nothing was ever written they are there, and take no room."""
    if hole_covers(descriptor, offset, length):
        return
    while length:
        written = os.pwrite(descriptor, bytes(min(length, STEP_BYTES)), offset)
        offset, length = offset + written, length - written


def hole_at(descriptor: int, offset: int, length: int) -> int:
    """How much of so many bytes comes before the next that was ever written."""
    try:
        return min(length, os.lseek(descriptor, offset, os.SEEK_DATA) - offset)
    except OSError as error:
        # Past the last one there is only a hole, or the end; who cannot tell has none.
        is_hole = error.errno == errno.ENXIO and offset + length <= os.fstat(descriptor).st_size
        return length if is_hole else 0


def copy_range(source: int, source_offset: int, target: int, target_offset: int, length: int) -> None:
    """Within the kernel where it can; on file systems that share blocks nothing is written twice. Holes stay holes."""
    while length:
        watch(120)
        num_bytes = hole_at(source, source_offset, length)
        if num_bytes:
            clear(target, target_offset, num_bytes)
            source_offset, target_offset = source_offset + num_bytes, target_offset + num_bytes
            length -= num_bytes
            continue
        if hasattr(os, "copy_file_range"):
            try:
                most = min(length, STEP_BYTES)
                num_bytes = os.copy_file_range(source, target, most, source_offset, target_offset)
            except OSError:
                num_bytes = 0
        if not num_bytes:
            data = os.pread(source, min(length, STEP_BYTES), source_offset)
            if not data:
                raise OSError(5, "the file that is here already has become shorter")
            num_bytes = os.pwrite(target, data, target_offset)
        source_offset, target_offset = source_offset + num_bytes, target_offset + num_bytes
        length -= num_bytes
