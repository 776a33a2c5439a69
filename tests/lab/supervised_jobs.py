"""What the tests of the supervisor share: shells to run it under, jobs that behave badly, a way to wait for a state."""

import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from dflashctl.bundle import bundle_root
from dflashctl.operations.supervised import SupervisedJob
from dflashctl.transport.local_shell import LocalShell
from dflashctl_remote.spec.process import MARKER

SUPERVISOR = bundle_root() / "dflashctl_remote" / "supervisor"
FLAVOURS = ("dash", "busybox", "bash")

SLEEPS = "import time; print('up', flush=True); time.sleep(1000)"
IS_DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPS}"
SAVES = """
import signal, sys, time
def save(number, frame):
    print('saved', flush=True)
    sys.exit(130)
signal.signal(signal.SIGTERM, save)
print('up', flush=True)
time.sleep(1000)
"""
HAS_CHILDREN = """
import os, signal, subprocess, sys, time
def orphan(argv, env):
    # A daemon: its parents are gone, and its session is its own.
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve(argv[0], argv, env)
        os._exit(0)
    os.wait()
quiet = {'stdout': subprocess.DEVNULL, 'stderr': subprocess.DEVNULL}
deaf = "trap '' TERM; while :; do sleep 0.5; done"
subprocess.Popen(['/bin/sleep', '1000'])
subprocess.Popen(['/bin/sh', '-c', deaf], start_new_session=True, **quiet)
subprocess.Popen(['/bin/sleep', '1000'], env={})
subprocess.Popen(['/bin/sleep', '1000'], env={}, start_new_session=True, **quiet)
subprocess.Popen(['another name', '1000'], executable='/bin/sleep', start_new_session=True, **quiet)
orphan(['/bin/sleep', '1000'], os.environ)
orphan(['/bin/sleep', '1000'], {})
"""
"""Seven children: in the group, deaf in a session of its own, without marker in the group, the same in a session of its
own, under another name, and two daemons, of which one has no marker but holds the log open."""
NUM_CHILDREN = 7
NUM_WITH_MARKER = 4


@dataclass(frozen=True)
class Flavour:
    name: str
    sh: str
    """Path of a program that is this shell."""

    def shell(self) -> LocalShell:
        return LocalShell(sh=(self.sh, "-s"))


def make_flavour(name: str, folder: Path) -> Flavour:
    """Called `sh`, each of them keeps to POSIX."""
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"there is no {name} here")
    sh = folder / name / "sh"
    sh.parent.mkdir(exist_ok=True)
    if not sh.exists():
        sh.symlink_to(program)
    return Flavour(name, str(sh))


def make_job(place: Path | str, code: str, *, name: str = "run-1", **changes) -> SupervisedJob:
    """A job that runs some Python; its work folder is `place`."""
    fields = {
        "name": name,
        "folder": f"{place}/runs/{name}",
        "argv": (sys.executable, "-S", "-c", code),
        "env": (),
        "files": (("run.json", "{}\n"),),
        "supervisor": str(SUPERVISOR),
        "workdir": str(place),
        "grace_s": 1.0,
        "restart_delay_s": 0.0,
    }
    return SupervisedJob(**{**fields, **changes})


def gated(gate: Path, ending: str, *, before: str = "") -> str:
    """A job that ends in some way when a file is there."""
    return f"import os, sys, time\n{before}\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n{ending}"


def until(claim, what: str = "", timeout_s: float = 30.0):
    """What `claim` gives, once that is true."""
    end = time.monotonic() + timeout_s
    while not (outcome := claim()):
        assert time.monotonic() < end, f"this did not come true: {what or claim}"
        time.sleep(0.01)
    return outcome


def carriers(marker: str) -> dict[int, str]:
    """Ground truth: living processes with the marker in their environment, and their state."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and f"{MARKER}={marker}".encode() in (folder / "environ").read_bytes().split(
                b"\0"
            ):
                found[int(folder.name)] = state_of(int(folder.name))
        except OSError:
            continue
    return {pid: state for pid, state in found.items() if state not in ("", "Z", "X")}


def state_of(pid: int) -> str:
    """One letter; nothing if there is no such process."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    return state_of(pid) not in ("", "Z", "X")


def path_without(folder: Path, *names: str) -> str:
    """A PATH with all programs of this one but some; `folder` is made once."""
    if folder.is_dir():
        return str(folder)
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            link = folder / program.name
            if program.name not in names and not link.exists():
                link.symlink_to(program)
    return str(folder)
