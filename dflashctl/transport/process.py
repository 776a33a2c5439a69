"""Processes of this machine by token: who one is, whether it is still the same one, and signals that reach no other.

Linux: /proc and pidfds. A pid alone is never trusted, and nothing is ever looked for by name.
"""

import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from dflashctl.errors import ConfigError
from dflashctl_remote.spec.process import MARKER, ProcessToken

PROC = Path("/proc")
Presence = Literal["alive", "gone", "another boot", "another namespace"]


def token_of(pid: int, marker: str) -> ProcessToken | None:
    """Who the process is now; None if it is not there."""
    stat = _stat(pid)
    if stat is None or pid == 1:
        return None
    return ProcessToken(
        boot_id=_boot_id(),
        pid=pid,
        start_ticks=stat.start_ticks,
        pid_namespace=_pid_namespace(),
        uid=stat.uid,
        marker=marker,
    )


def presence(token: ProcessToken) -> Presence:
    """Whether the very process is there. A zombie has ended: it is gone."""
    if token.boot_id != _boot_id():
        return "another boot"
    first = _stat(1)
    if first is not None and first.start_ticks > token.start_ticks:
        # All that there is is younger than the process: its container was started anew.
        return "another boot"
    if token.pid_namespace != _pid_namespace():
        return "another namespace"
    if token.pid <= 1:
        return "gone"
    stat = _stat(token.pid)
    if stat is None or stat.state in "ZXx" or (stat.start_ticks, stat.uid) != (token.start_ticks, token.uid):
        return "gone"
    return "alive"


def send(token: ProcessToken, number: signal.Signals) -> bool:
    """Signal the very process; False if it is not there. A pid that another process has by now is never hit.

    Raises ConfigError if the process is another user's.
    """
    with _pidfd(token.pid) as descriptor:
        # Opened first and looked at afterwards: from here on the descriptor means the process that was looked at.
        if descriptor is None or presence(token) != "alive":
            return False
        try:
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        except PermissionError as error:
            raise ConfigError(
                f"process {token.pid} belongs to user {token.uid}, and this is user {os.getuid()}: not signalled",
                hint="run the same command as that user",
            ) from error
        return True


def wait_gone(token: ProcessToken, timeout_s: float) -> bool:
    """Whether the process ended within the time."""
    with _pidfd(token.pid) as descriptor:
        if descriptor is None or presence(token) != "alive":
            return True
        ready, _, _ = select.select([descriptor], [], [], timeout_s)
    # Ended, though perhaps not yet waited for by its parent.
    return bool(ready) or presence(token) != "alive"


def family(token: ProcessToken) -> tuple[ProcessToken, ...]:
    """Living processes of the token's user that started no earlier than it and are its own; itself among them.

    Its own is what carries its marker, and, since a program may write over its environment or start another with an
    empty one, what is in its session. The session counts only while one that is known by token or marker is in it:
    so long, no other session can have its number. Whoever asks is never in it.
    """
    found: list[tuple[ProcessToken, bool, bool]] = []
    for folder in PROC.iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        stat = _stat(int(folder.name))
        member = token_of(int(folder.name), token.marker)
        if stat is None or member is None or member.start_ticks < token.start_ticks or presence(member) != "alive":
            continue
        if (member.uid, member.boot_id, member.pid_namespace) == (token.uid, token.boot_id, token.pid_namespace):
            is_known = member == token or _carries(folder, token.marker)
            found.append((member, is_known, stat.session == token.pid))
    is_session_ours = any(is_known and is_in_session for _, is_known, is_in_session in found)
    return tuple(member for member, is_known, is_in_session in found if is_known or (is_in_session and is_session_ours))


def _carries(process: Path, marker: str) -> bool:
    try:
        return f"{MARKER}={marker}".encode() in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait for the end of the block, in which something must not be left half done.

    Only the main thread gets signals; in another one this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, frame: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


class _Stat:
    def __init__(self, text: str, uid: int) -> None:
        self.uid = uid
        # The command's name is in parentheses and may hold anything, spaces and parentheses too.
        fields = text[text.rindex(")") + 2 :].split()
        self.state = fields[0]
        self.session = int(fields[3])
        self.start_ticks = int(fields[19])


def _stat(pid: int) -> _Stat | None:
    if pid < 1:
        return None
    try:
        folder = PROC / str(pid)
        return _Stat((folder / "stat").read_text(encoding="utf-8", errors="replace"), folder.stat().st_uid)
    except (FileNotFoundError, ProcessLookupError):
        return None


def _boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _pid_namespace() -> int:
    return (PROC / "self/ns/pid").stat().st_ino


class _pidfd:  # noqa: N801 - used as a function
    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._descriptor: int | None = None

    def __enter__(self) -> int | None:
        if self._pid <= 1:
            return None
        try:
            self._descriptor = os.pidfd_open(self._pid)
        except ProcessLookupError:
            self._descriptor = None
        return self._descriptor

    def __exit__(self, *details: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
