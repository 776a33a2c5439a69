"""This machine as a shell."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dflashctl.errors import JobFailed, LinkLost
from dflashctl.transport import files
from dflashctl.transport.framing import ErrTail, Frame, Reader
from dflashctl.transport.shell import RUN_S, Answer, Script


class LocalShell:
    def __init__(self, name: str = "local", *, sh: tuple[str, ...] = ("/bin/sh", "-s")) -> None:
        self._name = name
        self._sh = sh

    @property
    def name(self) -> str:
        return self._name

    def run(self, script: Script, *, timeout_s: float = RUN_S) -> Answer:
        frame = Frame()
        # A group of its own: the terminal's Ctrl-C is this process's business.
        with subprocess.Popen(
            self._sh,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        ) as child:
            try:
                out, err = child.communicate(frame.wrap(script), timeout=timeout_s)
            except subprocess.TimeoutExpired as error:
                os.killpg(child.pid, signal.SIGKILL)
                raise LinkLost(
                    f"{script.name} on {self._name} took longer than {timeout_s:g} s", host=self._name
                ) from error
            except BaseException:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                raise
        reader = Reader(frame)
        body = reader.add(out)
        if reader.code is None:
            raise LinkLost(f"{script.name} on {self._name} ended without an answer", host=self._name)
        tail = ErrTail(frame)
        tail.add(err)
        return Answer(reader.code, body, tail.text(), num_noise_bytes=reader.num_noise_bytes, noise=reader.noise)

    def stream(self, script: Script, *, silence_s: float, timeout_s: float) -> Iterator[bytes]:
        frame = Frame()
        reader = Reader(frame)
        deadline_s = time.monotonic() + timeout_s
        with subprocess.Popen(
            self._sh,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            process_group=0,
        ) as child:
            assert child.stdin is not None and child.stdout is not None
            watchdog = threading.Timer(timeout_s, _kill_group, (child.pid,))
            watchdog.daemon = True
            watchdog.start()
            try:
                with suppress(BrokenPipeError):
                    child.stdin.write(frame.wrap(script))
                    child.stdin.close()
                while reader.code is None and (new := os.read(child.stdout.fileno(), 65536)):
                    if body := reader.add(new):
                        yield body
            finally:
                watchdog.cancel()
                _kill_group(child.pid)
        if reader.code is None:
            late = " within its time" if time.monotonic() >= deadline_s else ""
            raise LinkLost(f"{script.name} on {self._name} did not end{late}", host=self._name)
        if reader.code != 0:
            raise JobFailed(f"{script.name} on {self._name} ended with exit code {reader.code}", host=self._name)

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


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
