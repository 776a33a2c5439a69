"""The process that a loopback host hangs from: sshd, sessions, and whatever they leave behind, are its descendants.

Reads orders, a line of JSON each, from standard input, and ends all of its descendants when that ends.
"""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError("cannot become a subreaper")
    codes: dict[int, Path] = {}
    while True:
        ready, _, _ = select.select([sys.stdin], [], [], 0.02)
        if ready:
            line = sys.stdin.readline()
            if not line:
                break
            _start(json.loads(line), codes)
        _reap(codes)
    while children := _children():
        for child in children:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.005)
        _reap(codes)


def _start(order: dict, codes: dict[int, Path]) -> None:
    with (
        Path(order["stdin"]).open("rb") as given,
        Path(order["out"]).open("wb") as out,
        Path(order["err"]).open("wb") as err,
    ):
        child = subprocess.Popen(order["argv"], env=order["env"], cwd=order["cwd"], stdin=given, stdout=out, stderr=err)
    codes[child.pid] = Path(order["code"])
    # Waited for here, and not by subprocess.
    child.returncode = 0


def _reap(codes: dict[int, Path]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid in codes:
            path = codes.pop(pid)
            path.with_suffix(".part").write_text(str(os.waitstatus_to_exitcode(status)))
            path.with_suffix(".part").rename(path)


def _children() -> list[int]:
    """All direct ones: those of a child that is killed become this process's own."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                text = Path("/proc", name, "stat").read_text(errors="replace")
            except OSError:
                continue
            if int(text[text.rindex(")") + 2 :].split()[1]) == os.getpid():
                found.append(int(name))
    return found


main()
