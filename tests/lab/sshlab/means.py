"""Which kind of lab this machine allows."""

import os
import shutil
import tempfile
from dataclasses import dataclass
from typing import Literal

from sshlab.host import run
from sshlab.isolated import CLEAN, START_S

Mode = Literal["namespaces", "loopback", "none"]


@dataclass(frozen=True)
class Means:
    """Which kind of lab this machine allows, and why no better one."""

    mode: Mode
    reason: str = ""

    def __str__(self) -> str:
        return f"lab: {self.mode}{': ' if self.reason else ''}{self.reason}"


def means() -> Means:
    """Tried, not guessed. DFLASHCTL_LAB=loopback or none asks for less than is allowed."""
    asked = os.environ.get("DFLASHCTL_LAB", "")
    missing = [name for name in ("sshd", "ssh", "ssh-keygen") if which(name) is None]
    if missing or asked == "none":
        return Means("none", f"no {', '.join(missing)}" if missing else "DFLASHCTL_LAB=none")
    if asked == "loopback":
        return Means("loopback", "DFLASHCTL_LAB=loopback")
    missing = [name for name in ("unshare", "nsenter", "ip", "mount") if which(name) is None]
    if missing:
        return Means("loopback", f"no {', '.join(missing)}")
    probe = """
        mount -t tmpfs probe "$1" && mkdir "$1/upper" "$1/work" "$1/root" &&
        mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root" &&
        mount -t proc proc "$1/root/proc" && mount -t devpts -o newinstance devpts "$1/root/dev" &&
        ip link add probe0 type veth peer name probe1 && [ -x "$1/root$2" ]
    """
    with tempfile.TemporaryDirectory(prefix="probe-") as folder:
        shell = ["/bin/sh", "-c", probe, "sh", folder, which("sshd") or ""]
        done = run(["unshare", "--mount", "--net", "--pid", "--fork", *shell], env=CLEAN, timeout_s=START_S)
    if done.code:
        reason = [*done.err.strip().splitlines(), "sshd is not on the root disk"][0]
        return Means("loopback", f"no right to make namespaces ({reason})")
    return Means("namespaces")


def which(program: str) -> str | None:
    return shutil.which(program, path=CLEAN["PATH"])
