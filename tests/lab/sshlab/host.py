"""One host of the lab, asked and changed without SSH. What needs isolation is in `isolated.py`."""

import os
import posixpath
import signal
import subprocess
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from sshlab.processes import Process, send

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class LabError(Exception):
    """The lab itself failed: no result of the code under test."""


@dataclass(frozen=True)
class Done:
    """A command that ended. Its output is decoded with surrogateescape."""

    code: int
    out: str
    err: str


def run(
    argv: Sequence[str], *, stdin: bytes = b"", env: dict[str, str], cwd: str | None = None, timeout_s: float
) -> Done:
    """Run to the end of this one process: children that hold its output open are not waited for."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin)
        given.seek(0)
        with subprocess.Popen(argv, stdin=given, stdout=out, stderr=err, env=env, cwd=cwd) as done:
            # A wait with a time limit looks only every 50 ms; benches want to know better.
            is_late = threading.Event()
            limit = threading.Timer(timeout_s, lambda: (is_late.set(), done.kill()))
            limit.start()
            try:
                done.wait()
            except BaseException:
                done.kill()
                raise
            finally:
                limit.cancel()
        if is_late.is_set():
            raise subprocess.TimeoutExpired(argv, timeout_s)
        out.seek(0)
        err.seek(0)
        return Done(done.returncode, os.fsdecode(out.read()), os.fsdecode(err.read()))


def wait_until(claim: Callable[[], object], what: str, timeout_s: float = 10.0) -> None:
    """Raises LabError if the claim does not come true in time."""
    end = time.monotonic() + timeout_s
    while not claim():
        if time.monotonic() > end:
            raise LabError(f"{what}: not within {timeout_s} s")
        time.sleep(0.01)


class Host(ABC):
    name: str
    address: str
    port: int
    """Of sshd, as whoever may reach the host has it."""
    user: str
    """The one to log in as; where hosts are isolated also `train`, uid 1500."""
    public_key: str
    """Type and key of the host, as in known_hosts after the name."""

    @abstractmethod
    def home(self, user: str | None = None) -> str: ...

    @abstractmethod
    def processes(self) -> tuple[Process, ...]:
        """All of the host, zombies too, read by this machine whatever the host hides."""

    @abstractmethod
    def jobs(self) -> tuple[Process, ...]:
        """Those that are left when nobody is logged in: neither sshd, nor anything below it, nor the host's own."""

    @abstractmethod
    def exec(
        self,
        command: str | Sequence[str],
        *,
        user: str | None = None,
        stdin: bytes | str = b"",
        env: dict[str, str] | None = None,
        timeout_s: float = 20.0,
        check: bool = True,
    ) -> Done:
        """Run an argv, or a text for /bin/sh, on the host without SSH, in the user's home folder.

        Raises LabError for an exit code other than 0, if `check`.
        """

    @abstractmethod
    def power_off(self) -> None:
        """End all that runs there, at once."""

    @abstractmethod
    def start_sshd(self) -> None: ...

    @property
    @abstractmethod
    def sshd(self) -> Process | None:
        """The one that listens; None if there is none."""

    @abstractmethod
    def login_shell(self, shell: str, user: str | None = None) -> AbstractContextManager[None]:
        """Context: the user's login shell is this program."""

    def start(self, argv: Sequence[str], *, user: str | None = None, env: dict[str, str] | None = None) -> Process:
        """Start a process that nobody on the host waits for, in a session of its own; it has done its exec."""
        text = 'setsid "$@" </dev/null >/dev/null 2>&1 & echo $!'
        pid = int(self.exec(["/bin/sh", "-c", text, "sh", *argv], user=user, env=env).out)
        wait_until(lambda: self._has_begun(pid, argv), f"{self.name}: {argv[0]} did not start")
        process = self.process(pid)
        if process is None:
            raise LabError(f"{self.name}: {argv[0]} ended at once")
        return process

    def process(self, pid: int) -> Process | None:
        return next((process for process in self.processes() if process.pid == pid), None)

    def alive(self, pid: int) -> bool:
        """Whether the host has a process of this number that has not ended."""
        process = self.process(pid)
        return process is not None and process.state not in "ZX"

    def is_alive(self, process: Process) -> bool:
        """Whether this very process has not ended."""
        now = self.process(process.pid)
        return now is not None and now.start_ticks == process.start_ticks and now.state not in "ZX"

    def signal_if_there(self, process: Process, number: signal.Signals) -> None:
        """Signal a process that may be ending by itself."""
        send(process.outer_pid, process.start_ticks, number)

    def signal(self, process: Process | int, number: signal.Signals) -> None:
        """Signal a process of the host. Raises LabError if it is not there."""
        found = self.process(process) if isinstance(process, int) else process
        if found is None or not send(found.outer_pid, found.start_ticks, number):
            raise LabError(f"{self.name}: no such process as {process}")

    def end_jobs(self) -> tuple[Process, ...]:
        """SIGKILL all `jobs()`, and return them."""
        ended: list[Process] = []
        for _ in range(100):
            jobs = [job for job in self.jobs() if job.state not in "ZX"]
            if not jobs:
                return tuple(ended)
            for job in jobs:
                send(job.outer_pid, job.start_ticks, signal.SIGKILL)
            ended += [job for job in jobs if job not in ended]
            time.sleep(0.005)
        raise LabError(f"{self.name}: these do not end: {[job.argv for job in jobs]}")

    def read(self, path: str) -> bytes:
        """Raises FileNotFoundError."""
        done = self.exec(["/bin/cat", "--", path], check=False)
        if done.code:
            raise FileNotFoundError(f"{self.name}:{path}: {done.err.strip()}")
        return os.fsencode(done.out)

    def write(self, path: str, content: bytes | str, *, mode: int = 0o644, user: str | None = None) -> None:
        """Folders above it are made."""
        text = 'mkdir -p -- "$1" && cat >"$2" && chmod "$3" "$2"'
        argv = ["/bin/sh", "-c", text, "sh", posixpath.dirname(path), path, f"{mode:o}"]
        self.exec(argv, stdin=content, user=user)

    def exists(self, path: str) -> bool:
        return self.exec(["test", "-e", path], check=False).code == 0

    def has(self, program: str) -> bool:
        return self.exec(["/bin/sh", "-c", 'command -v "$1"', "sh", program], check=False).code == 0

    def below_sshd(self) -> tuple[Process, ...]:
        """The processes of whoever is logged in."""
        sshd = self.sshd
        return () if sshd is None else tuple(_below(self.processes(), {sshd.outer_pid}))

    def kill_sessions(self) -> int:
        """SIGKILL what sshd runs for each connection, not what was started there. Returns how many connections."""
        sshd = self.sshd
        sessions = [process for process in self.below_sshd() if _is_sshd(process)]
        for session in sessions:
            send(session.outer_pid, session.start_ticks, signal.SIGKILL)
        # A connection may have a second process, without rights, below the first.
        return sum(sshd is not None and session.outer_parent == sshd.outer_pid for session in sessions)

    def stop_sshd(self) -> None:
        """SIGKILL the one that listens: connections stay, new ones are refused."""
        sshd = self.sshd
        if sshd is not None:
            self.signal(sshd, signal.SIGKILL)
            wait_until(lambda: not self.is_alive(sshd), f"{self.name}: sshd did not end")

    @contextmanager
    def sshd_down(self) -> Iterator[None]:
        self.stop_sshd()
        try:
            yield
        finally:
            self.start_sshd()

    @contextmanager
    def sshd_paused(self) -> Iterator[None]:
        """New connections are accepted by the kernel, and no banner comes."""
        sshd = self.sshd
        if sshd is None:
            raise LabError(f"{self.name}: no sshd")
        self.signal(sshd, signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(sshd, signal.SIGCONT)

    @contextmanager
    def bashrc(self, text: str, user: str | None = None) -> Iterator[None]:
        """The user's .bashrc, which a bash that sshd starts reads."""
        path = posixpath.join(self.home(user), ".bashrc")
        self.write(path, text, user=user)
        try:
            yield
        finally:
            self.exec(["rm", "-f", path])

    def _has_begun(self, pid: int, argv: Sequence[str]) -> bool:
        """Or has ended. A script's interpreter comes before its argv."""
        process = self.process(pid)
        if process is None:
            return True
        num_before = len(process.argv) - len(argv)
        is_execed = num_before >= 0 and process.argv[num_before + 1 :] == tuple(argv[1:])
        return is_execed and process.session == pid and process.argv[0] != "setsid"


def _below(processes: tuple[Process, ...], above: set[int]) -> Iterator[Process]:
    """In the order of descent."""
    children = [process for process in processes if process.outer_parent in above]
    if children:
        yield from children
        yield from _below(processes, {child.outer_pid for child in children})


def _is_sshd(process: Process) -> bool:
    """By the program itself: children of a session run others."""
    try:
        program = os.readlink(f"/proc/{process.outer_pid}/exe")
    except OSError:
        return False
    return os.path.basename(program) in ("sshd", "sshd-session", "sshd-auth")
