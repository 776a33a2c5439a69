"""This machine as a shell."""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dflashctl.errors import JobFailed, LinkLost
from dflashctl.transport import files
from dflashctl.transport.framing import ErrTail, Frame, Reader
from dflashctl.transport.shell import RUN_S, Answer, Script

READ_BYTES = 64 * 1024
ERR_S = 0.5
"""After the answer, the end of stderr may take so long to arrive."""


class LocalShell:
    def __init__(self, name: str = "local", *, sh: tuple[str, ...] = ("/bin/sh", "-s")) -> None:
        self._name = name
        self._sh = sh

    @property
    def name(self) -> str:
        return self._name

    def reach(self) -> None:
        """It is here."""

    def run(self, script: Script, *, timeout_s: float = RUN_S) -> Answer:
        exchange = _Exchange(script, self._name)
        out = b"".join(exchange.output(self._sh, silence_s=timeout_s, timeout_s=timeout_s))
        return exchange.answer(out)

    def stream(self, script: Script, *, silence_s: float, timeout_s: float) -> Iterator[bytes]:
        exchange = _Exchange(script, self._name)
        yield from exchange.output(self._sh, silence_s=silence_s, timeout_s=timeout_s)
        answer = exchange.answer(b"")
        if answer.code != 0:
            raise JobFailed(f"{script.name} on {self._name} failed: {files.reason(answer)}", host=self._name)

    def put(self, content: bytes, path: str, *, mode: int = 0o600, timeout_s: float = RUN_S) -> None:
        files.put(self.run, self._name, content, path, mode=mode, timeout_s=timeout_s)

    def get(self, path: str, *, offset_bytes: int = 0, limit_bytes: int, timeout_s: float = RUN_S) -> bytes:
        return files.get(
            self.run, self._name, path, offset_bytes=offset_bytes, limit_bytes=limit_bytes, timeout_s=timeout_s
        )

    @contextmanager
    def tunnel(self, port: int) -> Iterator[int]:
        yield port

    def close(self) -> None:
        pass


class _Exchange:
    """One script in a process of its own, which ends with it or at the limits."""

    def __init__(self, script: Script, host: str) -> None:
        frame = Frame()
        self._script, self._host = script, host
        self._unsent = memoryview(frame.wrap(script))
        self._reader, self._err = Reader(frame), ErrTail(frame)

    def answer(self, out: bytes) -> Answer:
        """Once all of the output was taken."""
        reader = self._reader
        assert reader.code is not None
        return Answer(reader.code, out, self._err.text(), num_noise_bytes=reader.num_noise_bytes, noise=reader.noise)

    def output(self, sh: tuple[str, ...], *, silence_s: float, timeout_s: float) -> Iterator[bytes]:
        deadline_s = time.monotonic() + timeout_s
        # A group of its own: the terminal's Ctrl-C is this process's business.
        with subprocess.Popen(
            sh, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0
        ) as child:
            try:
                yield from self._read(child, silence_s, deadline_s)
            finally:
                if self._reader.code is None:
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(child.pid, signal.SIGKILL)

    def _read(self, child: "subprocess.Popen[bytes]", silence_s: float, deadline_s: float) -> Iterator[bytes]:
        assert child.stdin is not None and child.stdout is not None and child.stderr is not None
        os.set_blocking(child.stdin.fileno(), False)
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdin, selectors.EVENT_WRITE)
            selector.register(child.stdout, selectors.EVENT_READ)
            selector.register(child.stderr, selectors.EVENT_READ)
            while self._reader.code is None or not self._err.has_ended:
                if self._reader.code is not None:
                    deadline_s = min(deadline_s, time.monotonic() + ERR_S)
                left_s = min(silence_s, deadline_s - time.monotonic())
                ready = selector.select(max(0.0, left_s))
                if not ready:
                    if self._reader.code is not None:
                        return
                    raise self._lost(deadline_s, silence_s)
                for key, _ in ready:
                    if key.fileobj is child.stdin:
                        if not self._send(child.stdin.fileno()):
                            selector.unregister(child.stdin)
                            child.stdin.close()
                        continue
                    new = os.read(key.fd, READ_BYTES)
                    if not new:
                        selector.unregister(key.fileobj)
                    elif key.fileobj is child.stderr:
                        self._err.add(new)
                    elif body := self._reader.add(new):
                        yield body
                if self._reader.code is None and child.stdout not in selector.get_map():
                    raise LinkLost(f"{self._script.name} on {self._host} ended without an answer", host=self._host)
                if self._reader.code is not None and child.stderr not in selector.get_map():
                    return

    def _send(self, descriptor: int) -> bool:
        """Whether there is more to send."""
        try:
            self._unsent = self._unsent[os.write(descriptor, self._unsent[:READ_BYTES]) :]
        except BrokenPipeError:
            return False
        return bool(self._unsent)

    def _lost(self, deadline_s: float, silence_s: float) -> LinkLost:
        name = f"{self._script.name} on {self._host}"
        if time.monotonic() >= deadline_s:
            return LinkLost(f"{name} did not end in time and was killed", host=self._host)
        return LinkLost(f"{name} said nothing for {silence_s:g} s and was killed", host=self._host)
