"""The first words to a program with raw pipes, until it is ready: behind any login shell, whatever that prints."""

import os
import select
import shlex
import time

from dflashctl.errors import HostError, HostUnreachable, JobFailed, LinkLost
from dflashctl.transport.bulk_process import Program
from dflashctl.transport.shell import Script

END_S = 0.5
"""A pipe that broke is the first sign of an end; so long after it the exit code and stderr may come."""
NOISE_BYTES = 1024
"""Of what a login shell printed, so much of the end is kept to show."""
MOST_LETTERS = 400
"""Of stderr, in one sentence."""


def begin(host: str, program: Program, script: Script, sentinel: str, deadline_s: float) -> None:
    """Raises HostUnreachable (nothing was run), LinkLost, JobFailed. `deadline_s`: on the monotonic clock."""
    _Beginning(host, program, script, sentinel, deadline_s).run()


def why_over(program: Program) -> str:
    """What became of one whose pipes broke, or that was waited for too long."""
    has_ended = program.wait(END_S)
    told = _sentence(program.err)
    said = f": {told}" if told else ""
    if not has_ended:
        return f"nothing more came{f'; last it said{said}' if told else ''}"
    if program.code is None:
        return f"the link was lost{said}"
    how = f"exit code {program.code}" if program.code >= 0 else f"signal {-program.code}"
    return f"the program there ended with {how}{said}"


class _Beginning:
    def __init__(self, host: str, program: Program, script: Script, sentinel: str, deadline_s: float) -> None:
        self._host, self._program, self._script = host, program, script
        self._sentinel, self._deadline_s = sentinel, deadline_s
        self._noise = b""

    def run(self) -> None:
        # The script is sent once a shell has answered: without that, it is certain that nothing was run.
        if self._told(f"echo {shlex.quote(self._sentinel)} up\n") != "up":
            raise self._without_a_shell()
        # One command, so that half of it, after a cut, runs not at all; no line after it is taken for a command.
        told = self._told(f"{{\n{self._script.source()}\n}}; exit\n")
        if told != "ready":
            raise self._not_ready(told)

    def _told(self, text: str) -> str | None:
        """Send, and read to the end of the next line with the sentinel: the rest of it. None: at the end of output, or
        when the time is over."""
        unsent = memoryview(text.encode())
        line = SentinelLine(self._sentinel)
        poll = select.poll()
        poll.register(self._program.stdout_fd, select.POLLIN)
        poll.register(self._program.stdin_fd, select.POLLOUT)
        os.set_blocking(self._program.stdin_fd, False)
        try:
            while (left_s := self._deadline_s - time.monotonic()) > 0:
                for descriptor, _ in poll.poll(left_s * 1000):
                    if descriptor == self._program.stdin_fd:
                        unsent = _rest(descriptor, unsent)
                        if not unsent:
                            poll.unregister(descriptor)
                        continue
                    new = os.read(descriptor, line.num_missing_bytes)
                    if not new:
                        return None
                    self._noise = (self._noise + new)[-NOISE_BYTES:]
                    if (told := line.add(new)) is not None:
                        return told
            return None
        finally:
            os.set_blocking(self._program.stdin_fd, True)

    def _without_a_shell(self) -> HostUnreachable:
        words = _sentence(self._noise)
        why = why_over(self._program) + (f", having said: {words}" if words else "")
        is_lost = self._program.wait(0.0) and self._program.code is None
        return HostUnreachable(
            f"{self._host} cannot be reached: no shell answered there ({why}); nothing was run",
            host=self._host,
            hint=f"dflashctl hosts check {self._host}"
            if is_lost
            else ".bashrc or its like must not exit or redirect output",
        )

    def _not_ready(self, told: str | None) -> HostError:
        name = f"{self._script.name} on {self._host}"
        if told is not None:
            return JobFailed(
                f"{name} failed: {told.removeprefix('failed').strip() or 'no reason given'}", host=self._host
            )
        why = why_over(self._program)
        if self._program.code is not None:
            return JobFailed(f"{name} failed: {why}", host=self._host)
        return LinkLost(
            f"{name} was sent and is not ready ({why}): how far it came is not known",
            host=self._host,
            hint=f"dflashctl hosts check {self._host}",
        )


class SentinelLine:
    """Finds the line that starts with a sentinel, wherever it begins, and wants not a byte of what is behind it."""

    def __init__(self, sentinel: str) -> None:
        self._mark = f"{sentinel} ".encode()
        self._held = b""

    @property
    def num_missing_bytes(self) -> int:
        """So many have still to come before the line can be at its end."""
        if self._held.startswith(self._mark):
            return 1
        return len(self._mark) - len(self._held) + 1

    def add(self, new: bytes) -> str | None:
        """The rest of the line, once it is there."""
        self._held += new
        at = self._held.find(self._mark)
        if at >= 0:
            rest, newline, _ = self._held[at + len(self._mark) :].partition(b"\n")
            self._held = self._held[at:]
            return rest.decode("utf-8", "replace") if newline else None
        most = min(len(self._mark) - 1, len(self._held))
        keep = next((n for n in range(most, 0, -1) if self._mark.startswith(self._held[-n:])), 0)
        self._held = self._held[len(self._held) - keep :]
        return None


def _rest(descriptor: int, unsent: memoryview) -> memoryview:
    """What could not be written. Nobody reads: nothing is left, and the output tells."""
    try:
        return unsent[os.write(descriptor, unsent) :]
    except BlockingIOError:
        return unsent
    except BrokenPipeError:
        return unsent[:0]


def _sentence(err: bytes) -> str:
    """The last lines as one, without what a terminal would act on."""
    lines = [line.strip() for line in err.decode("utf-8", "replace").splitlines()]
    text = "; ".join([line for line in lines if line][-3:])
    return "".join(letter if letter.isprintable() else "?" for letter in text)[-MOST_LETTERS:]
