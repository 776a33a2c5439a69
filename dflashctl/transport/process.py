"""Processes of this machine by token: who one is, whether it is still the same one, and signals that reach no other.

Linux: /proc and pidfds. A pid alone is never trusted, and nothing is ever looked for by name.
"""

import contextlib
import os
import select
import signal
from pathlib import Path
from typing import Literal

from dflashctl_remote.spec.process import MARKER, ProcessToken

PROC = Path("/proc")
Presence = Literal["alive", "gone", "another boot", "another namespace"]


def token_of(pid: int, marker: str) -> ProcessToken | None:
    """Who the process is now; None if it is not there."""
    stat = _stat(pid)
    if stat is None:
        return None
    return ProcessToken(
        boot_id=_boot_id(),
        pid=pid,
        start_ticks=stat.start_ticks,
        pid_namespace=_pid_namespace(),
        uid=os.getuid(),
        marker=marker,
    )


def presence(token: ProcessToken) -> Presence:
    """Whether the very process is there. A zombie has ended: it is gone."""
    if token.boot_id != _boot_id():
        return "another boot"
    if token.pid_namespace != _pid_namespace():
        return "another namespace"
    stat = _stat(token.pid)
    if stat is None or stat.state in "ZXx" or stat.start_ticks != token.start_ticks:
        return "gone"
    return "alive"


def send(token: ProcessToken, number: signal.Signals) -> bool:
    """Signal the very process; False if it is not there. A pid that another process has by now is never hit."""
    with _pidfd(token.pid) as descriptor:
        # Opened first and looked at afterwards: from here on the descriptor means the process that was looked at.
        if descriptor is None or presence(token) != "alive":
            return False
        try:
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
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
    """Living processes of this user that carry the token's marker and started no earlier than it; itself among them.

    Whoever asks must not carry the marker itself.
    """
    wanted = f"{MARKER}={token.marker}".encode()
    found = []
    for folder in PROC.iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if folder.stat().st_uid != token.uid or wanted not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            member = token_of(int(folder.name), token.marker)
            if member is not None and member.start_ticks >= token.start_ticks and presence(member) == "alive":
                found.append(member)
    return tuple(found)


class _Stat:
    def __init__(self, text: str) -> None:
        # The command's name is in parentheses and may hold anything, spaces and parentheses too.
        fields = text[text.rindex(")") + 2 :].split()
        self.state = fields[0]
        self.start_ticks = int(fields[19])


def _stat(pid: int) -> _Stat | None:
    if pid <= 1:
        return None
    try:
        return _Stat((PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace"))
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
        try:
            self._descriptor = os.pidfd_open(self._pid)
        except (ProcessLookupError, OSError):
            self._descriptor = None
        return self._descriptor

    def __exit__(self, *details: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
