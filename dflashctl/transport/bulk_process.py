"""A program with raw pipes, as a process of this machine: the program itself, or the `ssh` that runs it elsewhere."""

import os
import select
import subprocess
import threading
from typing import Protocol

ERR_BYTES = 4 * 1024
"""Of stderr, so much of the end is kept."""
READ_BYTES = 64 * 1024
LOOK_S = 0.25
"""So often a waiting thread looks whether anybody still wants what it waits for."""
TERM_S = 1.0
LOST = 255
"""Exit code of an `ssh` that has lost the link."""


class Program(Protocol):
    route: str
    """How its bytes travel, for people."""
    stdin_fd: int
    stdout_fd: int
    """Blocking. Whoever has the program closes both."""

    @property
    def err(self) -> bytes:
        """The end of its stderr."""
        ...

    @property
    def code(self) -> int | None:
        """None while it runs, and if the link was lost before it ended. Below 0: ended by that signal."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended by then."""
        ...

    def cut(self) -> None:
        """End the link at once; who waits in the pipes is woken."""
        ...

    def end(self, grace_s: float) -> None:
        """Wait for it so long, then end it. Both pipes are closed by then."""
        ...


class ErrTail:
    """Takes what comes on stderr; keeps the end."""

    def __init__(self) -> None:
        self.text = b""

    def add(self, new: bytes) -> None:
        self.text = (self.text + new)[-ERR_BYTES:]


class ChildProgram:
    def __init__(self, argv: list[str], route: str, *, is_ssh: bool) -> None:
        self.route = route
        self._is_ssh = is_ssh
        # A session of its own: the terminal's Ctrl-C is this process's business.
        self._child = subprocess.Popen(
            argv,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._child.stdin is not None and self._child.stdout is not None and self._child.stderr is not None
        # Closed by number, by others.
        self.stdin_fd, self.stdout_fd = os.dup(self._child.stdin.fileno()), os.dup(self._child.stdout.fileno())
        self._child.stdin.close()
        self._child.stdout.close()
        self._err = ErrTail()
        self._is_over = False
        self._drain = threading.Thread(target=self._drain_err, name="bulk-stderr", daemon=True)
        self._drain.start()

    @property
    def err(self) -> bytes:
        return self._err.text

    @property
    def code(self) -> int | None:
        code = self._child.returncode
        # An `ssh` that was killed is a lost link, too.
        return None if code is None or (self._is_ssh and (code == LOST or code < 0)) else code

    def wait(self, timeout_s: float) -> bool:
        try:
            self._child.wait(max(0.0, timeout_s))
        except subprocess.TimeoutExpired:
            return False
        # What it said at the end counts; others that hold its stderr are not waited for.
        self._drain.join(LOOK_S)
        return True

    def cut(self) -> None:
        self._child.kill()

    def end(self, grace_s: float) -> None:
        if not self.wait(grace_s):
            self._child.terminate()
            if not self.wait(TERM_S):
                self._child.kill()
                self._child.wait()
        self._is_over = True
        self._drain.join()

    def _drain_err(self) -> None:
        assert self._child.stderr is not None
        with self._child.stderr as pipe:
            poll = select.poll()
            poll.register(pipe, select.POLLIN)
            while True:
                if poll.poll(LOOK_S * 1000):
                    new = os.read(pipe.fileno(), READ_BYTES)
                    if not new:
                        return
                    self._err.add(new)
                elif self._is_over:
                    return


def over_ssh(argv: list[str], cipher: str) -> ChildProgram:
    return ChildProgram(argv, f"ssh {cipher}", is_ssh=True)


def on_this_machine() -> ChildProgram:
    return ChildProgram(["/bin/sh", "-s"], "local", is_ssh=False)
