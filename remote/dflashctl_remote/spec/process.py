"""Who a process is, so that a signal can never reach another one that has its number by now."""

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
    marker: str
    """Value of the environment variable MARKER."""
