"""The scan and the signals of proc.sh, for hosts that have a python3: quicker, and through pidfds free of any race.

Not imported: its text is handed to `python3 -c` by proc.sh, which says what a family is. Any Python since 3.6.
"""

import os
import signal
import stat
import sys
import time

KERNEL_THREAD = 0x200000
KILL_S = 2.0


class Row:
    """A living process."""

    def __init__(self, pid: int) -> None:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command's name is in parentheses and may hold anything.
            fields = file.read().rpartition(b")")[2].split()
        self.pid = pid
        self.is_dead = fields[0] in (b"Z", b"X", b"x")
        self.parent = int(fields[1])
        self.session = int(fields[3])
        self.is_kernel = bool(int(fields[6]) & KERNEL_THREAD)
        self.ticks = int(fields[19])
        self.uid = os.stat(f"/proc/{pid}").st_uid
        self.name = f"{pid}:{self.ticks}"

    def is_in_session(self, leader: str) -> bool:
        """Never for leader 0: so reads every session that was begun outside of a container."""
        return leader != "0" and self.session == int(leader)


def family(marker: str, since: str, uid: str, asker: str, supervisor: str, pipe: str, *known: str) -> "list[Row]":
    rows = candidates(int(since), int(uid), int(asker))
    until = {int(name[1:].partition(":")[0]): int(name.partition(":")[2]) for name in known if name[0] == "s"}
    leaders = {int(name.lstrip("s").partition(":")[0]) for name in known}
    members: set[int] = set()
    for row in rows:
        was_in_session = row.session in until and row.ticks <= until[row.session]
        is_ours = row.name in known or was_in_session or carries(row.pid, marker)
        if is_ours or (pipe and not row.is_in_session(supervisor) and writes_to(row.pid, pipe)):
            members.add(row.pid)
            leaders.add(row.pid)
    size = -1
    while size != len(members):
        size = len(members)
        sessions = {row.session for row in rows if row.pid in members} & leaders
        members |= {row.pid for row in rows if row.session in sessions or row.parent in members}
    return [row for row in rows if row.pid in members]


def candidates(since: int, uid: int, asker: int) -> "list[Row]":
    everyone: dict[int, Row] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) > 1:
            try:
                everyone[int(name)] = Row(int(name))
            except (OSError, ValueError, IndexError):
                continue
    # This process too: it is asked by one that is of nobody's family.
    strangers = {os.getpid()}
    above = asker
    while above in everyone:
        strangers.add(above)
        above = everyone[above].parent
    below = {asker} if asker else set()
    size = -1
    while size != len(below):
        size = len(below)
        below |= {row.pid for row in everyone.values() if row.parent in below}
    return [
        row
        for pid, row in sorted(everyone.items())
        if not (row.is_dead or row.is_kernel or pid in strangers or pid in below)
        if row.ticks >= since and (row.uid == uid or effective_uid(pid) == uid)
    ]


def effective_uid(pid: int) -> "int | None":
    # The folder of a process that may not be looked into is root's, whoever runs it.
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return next((int(line.split()[2]) for line in file if line.startswith(b"Uid:")), None)
    except OSError:
        return None


def carries(pid: int, marker: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return b"DFLASHCTL_MARKER=" + os.fsencode(marker) in file.read().split(b"\0")
    except OSError:
        return False


def writes_to(pid: int, pipe: str) -> bool:
    folder = f"/proc/{pid}/fd/"
    try:
        return any(os.readlink(folder + name) == pipe and os.lstat(folder + name).st_mode & stat.S_IWUSR
                   for name in os.listdir(folder))  # fmt: skip
    except OSError:
        return False


def kill(spared: str, *about: str) -> None:
    """Again and again: those that go on forking are overtaken. Prints who was killed, a slash, and who is left."""
    killed: dict[str, None] = {}
    end_s = time.monotonic() + KILL_S
    num_empty = 0
    # One that has just been forked may not be there yet, when the one that forked it is gone already.
    while num_empty < 2 and time.monotonic() < end_s:
        due = [row for row in family(*about, *killed) if not row.is_in_session(spared)]
        num_empty = 0 if due else num_empty + 1
        for row in due:
            signal_one(row.pid, row.ticks, signal.SIGKILL)
        if all(row.name in killed for row in due):
            time.sleep(0.01)
        killed.update(dict.fromkeys(row.name for row in due))
    left = [row.name for row in family(*about, *killed)]
    print(" ".join(killed), "/", " ".join(left))


def send(name: str, *members: str) -> None:
    number = getattr(signal, "SIG" + name)
    for member in members:
        pid, _, ticks = member.partition(":")
        if int(pid) > 1:
            signal_one(int(pid), int(ticks), number)


def signal_one(pid: int, ticks: int, number: int) -> None:
    if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
        sys.exit(3)
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # Looked at after it was opened: from here on the descriptor means the process that was looked at.
        row = Row(pid)
        if row.ticks == ticks and not row.is_dead:
            signal.pidfd_send_signal(descriptor, number)
    except (ProcessLookupError, FileNotFoundError, PermissionError):
        return
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    if sys.argv[1] == "find":
        print(" ".join(row.name for row in family(*sys.argv[2:])))
    elif sys.argv[1] == "kill":
        kill(*sys.argv[2:])
    else:
        send(*sys.argv[2:])
