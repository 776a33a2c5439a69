"""Processes as the kernel tells of them: ground truth beside the code under test, which has its own way of asking."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """One process. Numbers are the host's own; `outer_pid` is what this machine calls it."""

    pid: int
    outer_pid: int
    parent: int
    """0 if that is not on the host."""
    outer_parent: int
    session: int
    uid: int
    state: str
    """One letter, as /proc has it. Z has ended."""
    start_ticks: int
    argv: tuple[str, ...]
    environ: dict[str, str]


def namespace_of(pid: int) -> int:
    """Inode of the process's PID namespace. Raises OSError if it is gone."""
    return (PROC / str(pid) / "ns/pid").stat().st_ino


def in_namespace(inode: int) -> tuple[Process, ...]:
    """All processes of a PID namespace, in the order of their numbers. Zombies are among them."""
    members, unsure = [], []
    for pid in _pids():
        try:
            is_member = namespace_of(pid) == inode
        except OSError:
            # One that is ending, or has ended and is a zombie, need not tell any more; its parent does.
            unsure.append(pid)
            continue
        if is_member and (found := _read(pid)) is not None:
            members.append(found)
    outer = {process.outer_pid for process in members}
    ending = [found for pid in unsure if (found := _read(pid)) is not None and found.outer_parent in outer]
    return _with_inner_numbers([*members, *ending])


def descendants(pid: int) -> tuple[Process, ...]:
    """All processes below one of this machine's, itself not among them; their numbers are this machine's."""
    parents = {found: stat[1] for found in _pids() if (stat := _stat(found)) is not None}
    below, size = {pid}, 0
    while len(below) > size:
        size = len(below)
        below |= {child for child, parent in parents.items() if parent in below}
    found = [process for child in sorted(below - {pid}) if (process := _read(child)) is not None]
    return tuple(replace(process, pid=process.outer_pid) for process in found)


def start_ticks(pid: int) -> int | None:
    """None if there is no such process, or it has ended."""
    stat = _stat(pid)
    return None if stat is None or stat[0] in "ZX" else stat[3]


def send(outer_pid: int, ticks: int, number: signal.Signals) -> bool:
    """Signal the very process, None other; False if it is gone."""
    try:
        descriptor = os.pidfd_open(outer_pid)
    except ProcessLookupError:
        return False
    try:
        if start_ticks(outer_pid) != ticks:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir(PROC) if name.isdigit())


def _stat(pid: int) -> tuple[str, int, int, int] | None:
    """State, parent, session, start."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], int(fields[1]), int(fields[3]), int(fields[19])


def _read(pid: int) -> Process | None:
    """None if it is gone. The parent's and the session's numbers are this machine's."""
    stat = _stat(pid)
    try:
        status = dict(line.split(":", 1) for line in (PROC / str(pid) / "status").read_text().splitlines())
    except (FileNotFoundError, ProcessLookupError):
        return None
    if stat is None:
        return None
    argv, environ = _of_program(pid, "cmdline"), _of_program(pid, "environ")
    variables = (entry.partition("=") for entry in os.fsdecode(environ).split("\0") if "=" in entry)
    return Process(
        pid=int(status["NSpid"].split()[-1]),
        outer_pid=pid,
        parent=stat[1],
        outer_parent=stat[1],
        session=stat[2],
        uid=int(status["Uid"].split()[1]),
        state=stat[0],
        start_ticks=stat[3],
        argv=tuple(os.fsdecode(argv).removesuffix("\0").split("\0")) if argv else (),
        environ={name: value for name, _, value in variables},
    )


def _of_program(pid: int, name: str) -> bytes:
    """Nothing for a zombie, which has none any more, and for another user's."""
    try:
        return (PROC / str(pid) / name).read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


def _with_inner_numbers(found: list[Process]) -> tuple[Process, ...]:
    inner = {process.outer_pid: process.pid for process in found}
    translated = [
        replace(process, parent=inner.get(process.outer_parent, 0), session=inner.get(process.session, 0))
        for process in found
    ]
    return tuple(sorted(translated, key=lambda process: process.pid))
