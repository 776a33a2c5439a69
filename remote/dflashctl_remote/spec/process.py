"""Who a process is, so that a signal can never reach another one that has its number by now; and how one ended."""

from dflashctl_remote.spec.base import Spec

MARKER = "DFLASHCTL_MARKER"
"""Environment variable that a process and all its children carry: the path of its folder on the host."""


class ProcessToken(Spec):
    """token.json. Pids are reused and command lines copied; boot, namespace and start time together are not."""

    boot_id: str
    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat, raw: clock ticks from boot to the start of the process."""
    pid_namespace: int
    """Inode of /proc/self/ns/pid of whoever wrote this."""
    uid: int
    folder_inode: int | None = None
    """Of the run's folder: a copy of the folder is not the run's."""
    marker: str
    """Value of the environment variable MARKER."""


class ExitRecord(Spec):
    """exit.json, which a supervisor writes last: how the job that it watched over ended."""

    code: int | None
    """As a shell has it: 128 + the signal's number for a job that a signal ended. None: nobody was there to see it."""
    signal: int | None
    """If `code` is above 128; a job may have chosen such a code itself."""
    at_s: float
    """Unix time of the host."""
    stop: bool
    """Somebody had asked it to stop."""
    killed: bool = False
    """By its supervisor, when its grace was over."""
    restarts: int = 0
    swept: tuple[int, ...] = ()
    """Pids of children that the job left behind, which were ended."""
    oom_kills: int | None = None
    """Of its control group while it ran; None: not known."""
