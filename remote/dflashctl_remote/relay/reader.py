"""Reads chunks at the source and sends them, encoded where the link is slower than the cores."""

from __future__ import annotations

import collections
import errno
import os
import queue
import threading
import time
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from dflashctl_remote.relay import codec, wire
from dflashctl_remote.relay.agent import Line, Refused, reason, watch
from dflashctl_remote.relay.chief import version_of
from dflashctl_remote.relay.push import Push

MOST_OPEN = 64
STEP_BYTES = 1 << 20
PUSHED_BYTES = 1 << 18
"""Where the operator sees no byte: so that a slow link is not taken for a dead one."""
NO_SENDFILE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSOCK, errno.EOPNOTSUPP)
BAD_DISK = (errno.EIO, errno.ESTALE)
MANY = 8
"""Pieces: then they are small, and gathered in memory before they go."""
MARGIN = 0.9
"""Encoding must promise to take less than this share of the time, or bytes."""
KNOWN_BYTES = 16 << 20
"""So much must have gone before its rate says anything: the first of it only fills buffers."""
IDLE_SHARE = 0.15
"""With less of the cores idle they are what is slow, not the link."""


class Changed(Exception):
    def __init__(self, index: int, why: str, text: str) -> None:
        super().__init__(text)
        self.index = index
        self.why = why
        self.text = text


class Reader:
    def __init__(self, line: Line) -> None:
        self.line = line
        self.root = ""
        self.files: list[list[Any]] = []
        self.open: collections.OrderedDict[str, int] = collections.OrderedDict()
        self.lock = threading.Lock()
        self.link = Link()
        self.encoders = ThreadPoolExecutor(max(1, os.cpu_count() or 1))
        self.sender: threading.Thread | None = None
        self.due: queue.Queue[tuple[dict[str, Any], dict[str, Any]] | None] = queue.Queue()
        self.method = (codec.available() or ("",))[0]
        self.push: Push | None = None
        """The way to the writer, if it does not lead through the operator."""

    def answer(self, fields: dict[str, Any], asked: Any) -> None:
        op = fields["op"]
        if op == "open":
            # A file's row is as the chief told it, or has become since.
            self.root, self.files = asked["root"], asked["files"]
            self.method = next((name for name in codec.available() if name in asked["methods"]), "")
            self.line.say({"methods": list(codec.available())}, op=op)
        elif op == "direct":
            self.push = Push(self.line, asked["argv"], asked["script"], asked["sentinel"])
            self.line.say(self.push.ask("open", asked["open"]), op=op)
            self.push.listen()
        elif op == "read":
            if self.sender is None:
                self.sender = threading.Thread(target=self.send_all, daemon=True)
                self.sender.start()
            self.due.put((fields, asked))
        else:
            raise Refused("op", f"unknown question {op!r}")

    def send_all(self) -> None:
        """In the order of the questions. The next chunk is made ready while one is being sent."""
        ready: collections.deque[tuple[dict[str, Any], dict[str, Any], Future[bytes] | None]] = collections.deque()
        most = 1 + (os.cpu_count() or 1)
        while True:
            # How a chunk goes is decided when it is made ready: not long before anything is known of the link.
            ahead = most if self.link.is_known else 1
            while len(ready) < ahead and (not ready or not self.due.empty()):
                item = self.due.get()
                if item is None:
                    return
                ready.append((*item, self.prepare(item[1])))
            fields, asked, coming = ready.popleft()
            try:
                self.send(int(fields["id"]), asked, coming)
            except OSError:
                # The operator has gone.
                os._exit(0)
            except BaseException:  # noqa: BLE001
                # A reader that sends no more must not look like one that is slow.
                traceback.print_exc()
                os._exit(1)

    def prepare(self, asked: dict[str, Any]) -> Future[bytes] | None:
        """None: it goes as it is."""
        if asked["encode"] == "no" or not self.method or asked["size"] < 4096:
            return None
        if asked["encode"] == "auto" and not self.link.is_slow(has_base=bool(asked.get("bases"))):
            return None
        if self.is_hole(asked):
            return None
        return self.encoders.submit(self.encoded, asked)

    def gather(self, asked: dict[str, Any]) -> bytes:
        """Raises Changed. Each file is looked at before and after it is read."""
        gathered = []
        for index, offset, length in asked["pieces"]:
            path = self.files[index][0]
            full = os.path.join(self.root, path)
            try:
                descriptor = os.open(full, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    self.check(index, os.fstat(descriptor))
                    gathered.append(os.pread(descriptor, length, offset))
                    self.check(index, os.fstat(descriptor))
                finally:
                    os.close(descriptor)
            except FileNotFoundError:
                raise Changed(index, "vanished", f"{full} is gone") from None
            except OSError as error:
                raise Changed(index, "unreadable", f"{full}: {reason(error)}") from None
            if len(gathered[-1]) != length:
                raise Changed(index, "changed", f"{full} was changed")
        return b"".join(gathered)

    def encoded(self, asked: dict[str, Any]) -> bytes:
        data = self.gather(asked)
        base = None
        if asked.get("bases"):
            try:
                base = b"".join(read_range(*piece) for piece in asked["bases"])
            except OSError:
                # Pruned by now: then it goes as it is.
                return b""
        began_s = time.perf_counter()
        stored = codec.encode(data, asked["width"], base, method=self.method)
        self.link.encoded(len(data), len(stored), time.perf_counter() - began_s, has_base=base is not None)
        return bytes(stored) if len(stored) < len(data) else b""

    def send(self, number: int, asked: dict[str, Any], coming: Future[bytes] | None) -> None:
        try:
            stored = coming.result() if coming is not None else b""
            if stored:
                self.send_bytes(number, asked, "base" if asked.get("bases") else "planes", stored)
            elif len(asked["pieces"]) > MANY:
                self.send_bytes(number, asked, "raw", self.gather(asked))
            else:
                self.send_raw(number, asked)
        except Changed as changed:
            if self.push is not None:
                self.push.refuse(number)
            self.line.say({"file": changed.index, "why": changed.why, "text": changed.text}, id=number, bad=1)
            return
        if self.push is not None:
            self.push.confirm(number)
        else:
            self.line.say(id=number, ok=1)

    def out(self, number: int, asked: dict[str, Any], how: str, size: int) -> int:
        """Where the payload goes; its header has gone there."""
        if self.push is not None:
            return self.push.begin(number, asked["place"], how, size)
        wire.write_all(self.line.answers, wire.header(id=number, how=how, n=size))
        return self.line.answers

    def send_bytes(self, number: int, asked: dict[str, Any], how: str, data: bytes) -> None:
        began_s = time.perf_counter()
        view = memoryview(data)
        with self.line.lock if self.push is None else self.push.lock:
            out = self.out(number, asked, how, len(data))
            step = self.step_bytes()
            for at in range(0, len(view), step):
                wire.write_all(out, view[at : at + step])
                self.go_on()
        self.link.sent(len(data), time.perf_counter() - began_s)

    def send_raw(self, number: int, asked: dict[str, Any]) -> None:
        """Within the kernel, from file to pipe. Raises Changed, before the first byte or after the last."""
        for index, _, _ in asked["pieces"]:
            self.descriptor(index)
        if self.is_hole(asked):
            self.send_bytes(number, asked, "zeros", b"")
        else:
            began_s = time.perf_counter()
            with self.line.lock if self.push is None else self.push.lock:
                out = self.out(number, asked, "raw", asked["size"])
                problems = [self.copy(out, index, offset, length) for index, offset, length in asked["pieces"]]
            self.link.sent(asked["size"], time.perf_counter() - began_s)
            for problem in problems:
                if problem is not None:
                    raise problem
        for index, _, _ in asked["pieces"]:
            self.check(index, os.fstat(self.descriptor(index)))

    def copy(self, out: int, index: int, offset: int, length: int) -> Changed | None:
        """What a file lacks by now is made up for, as is seen afterwards. Gives what is wrong with its disk."""
        descriptor = self.descriptor(index)
        end = offset + length
        while offset < end:
            self.go_on()
            problem = None
            try:
                sent = self.pass_on(out, descriptor, offset, min(self.step_bytes(), end - offset))
            except OSError as error:
                # No pipe says that: it is not the operator who has gone.
                if error.errno not in BAD_DISK:
                    raise
                sent = 0
                problem = Changed(index, "unreadable", f"{self.root}/{self.files[index][0]}: {reason(error)}")
            if not sent:
                wire.write_all(out, bytes(end - offset))
                return problem
            offset += sent
        return None

    def pass_on(self, out: int, descriptor: int, offset: int, length: int) -> int:
        try:
            return os.sendfile(out, descriptor, offset, length)
        except OSError as error:
            # Some systems do it to sockets alone, some file systems not at all.
            if error.errno not in NO_SENDFILE:
                raise
        data = os.pread(descriptor, length, offset)
        wire.write_all(out, data)
        return len(data)

    def step_bytes(self) -> int:
        return STEP_BYTES if self.push is None else PUSHED_BYTES

    def go_on(self) -> None:
        watch(120)
        if self.push is not None:
            self.push.goes_on()

    def check(self, index: int, found: os.stat_result) -> None:
        if version_of(found) != self.files[index][1:4]:
            self.forget(self.files[index][0])
            raise Changed(index, "changed", f"{self.root}/{self.files[index][0]} was changed")

    def descriptor(self, index: int) -> int:
        path = self.files[index][0]
        try:
            descriptor = self.opened(os.path.join(self.root, path), path)
            self.check(index, os.fstat(descriptor))
            return descriptor
        except FileNotFoundError:
            raise Changed(index, "vanished", f"{self.root}/{path} is gone") from None
        except OSError as error:
            raise Changed(index, "unreadable", f"{self.root}/{path}: {reason(error)}") from None

    def opened(self, full: str, key: str) -> int:
        with self.lock:
            if key in self.open:
                self.open.move_to_end(key)
                return self.open[key]
            descriptor = os.open(full, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            self.open[key] = descriptor
            while len(self.open) > MOST_OPEN:
                os.close(self.open.popitem(last=False)[1])
            return descriptor

    def forget(self, key: str) -> None:
        with self.lock:
            descriptor = self.open.pop(key, None)
            if descriptor is not None:
                os.close(descriptor)

    def is_hole(self, asked: dict[str, Any]) -> bool:
        try:
            return asked["size"] > 4096 and all(
                hole_covers(self.descriptor(index), offset, length) for index, offset, length in asked["pieces"]
            )
        except (OSError, Changed):
            return False

    def end(self) -> None:
        self.due.put(None)
        if self.push is not None:
            self.push.end()


class Link:
    """How fast bytes go out, and how fast the cores make fewer of them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sent_per_s = 0.0
        self.encoded_per_s = 0.0
        self.ratio = {False: 0.7, True: 0.7}
        self.sent_bytes = 0
        self.idle_share = 1.0
        self.ticks = busy_and_idle()
        self.num_asked = 0

    def sent(self, num_bytes: int, seconds: float) -> None:
        if not num_bytes:
            # Holes tell nothing of a link.
            return
        with self.lock:
            self.sent_bytes += num_bytes
            rate = num_bytes / max(seconds, 1e-6)
            self.sent_per_s = rate if not self.sent_per_s else 0.7 * self.sent_per_s + 0.3 * rate
            busy, idle = busy_and_idle()
            if busy + idle - sum(self.ticks) >= 20:
                self.idle_share = (idle - self.ticks[1]) / (busy + idle - sum(self.ticks))
                self.ticks = (busy, idle)

    def encoded(self, size: int, stored: int, seconds: float, *, has_base: bool) -> None:
        with self.lock:
            rate = size / max(seconds, 1e-6)
            self.encoded_per_s = rate if not self.encoded_per_s else 0.7 * self.encoded_per_s + 0.3 * rate
            self.ratio[has_base] = 0.7 * self.ratio[has_base] + 0.3 * stored / size

    @property
    def is_known(self) -> bool:
        return self.sent_bytes >= KNOWN_BYTES

    def is_slow(self, *, has_base: bool) -> bool:
        """Whether fewer bytes are quicker. What buffers swallow says nothing, so the first few MiB go as they are."""
        with self.lock:
            self.num_asked += 1
            if not self.is_known:
                return False
            if not self.encoded_per_s:
                return True
            if self.idle_share < IDLE_SHARE:
                return False
            ratio = self.ratio[has_base]
            if ratio > MARGIN:
                # Tried again now and then: the next tensor may be of another kind.
                return self.num_asked % 16 == 0
            raw_s = 1 / self.sent_per_s
            encoded_s = max(ratio / self.sent_per_s, 1 / (self.encoded_per_s * max(1, (os.cpu_count() or 1) - 1)))
            return encoded_s < MARGIN * raw_s


def busy_and_idle() -> tuple[int, int]:
    """Ticks of all cores since the boot; zeros where that is not told."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            values = [int(word) for word in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    idle = values[3] + values[4]
    return sum(values) - idle, idle


def read_range(path: str, offset: int, length: int) -> bytes:
    """So many bytes, made up with zeros if the file has become shorter."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces = []
        while length:
            piece = os.pread(descriptor, length, offset)
            if not piece:
                pieces.append(bytes(length))
                break
            pieces.append(piece)
            offset += len(piece)
            length -= len(piece)
        return b"".join(pieces)
    finally:
        os.close(descriptor)


def hole_covers(descriptor: int, offset: int, length: int) -> bool:
    """Whether nothing was ever written there, so that it reads as zeros."""
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA) >= offset + length
    except OSError as error:
        # ENXIO: from there to the end there is only a hole.
        return error.errno == 6 and length > 0
