"""Raw bytes to and from a program on a host, for bulk: two pipes, with the system's `ssh` between them if it is there.

Knows nothing of what is said. Questions go by `shell.py`.
"""

import fcntl
import os
import shutil
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

from dflashctl.config.hosts import HostsFile
from dflashctl.config.ssh import SshSettings
from dflashctl.defaults import LOCAL
from dflashctl.errors import ConfigError, HostUnreachable, LinkLost
from dflashctl.transport.bulk_begin import begin, why_over
from dflashctl.transport.bulk_config import ssh_argv
from dflashctl.transport.bulk_process import Program, on_this_machine, over_ssh
from dflashctl.transport.pool import Pool
from dflashctl.transport.shell import Script
from dflashctl.transport.ssh_config import route_to
from dflashctl.transport.ssh_shell import open_shell
from dflashctl.transport.talk import COMMAND

Client = Literal["auto", "ssh", "paramiko"]
PIPE_BYTES = 1024 * 1024


class ByteStream:
    """A program that runs on a host. Its pipes block, and belong to whoever opened the stream.

    What is read from `stdout_fd` is at its end when the program is, or the link: `error` says which.
    """

    def __init__(self, host: str, program: Program) -> None:
        self._host, self._program = host, program
        self._lock = threading.Lock()
        self._is_closed = False
        self.stdin_fd, self.stdout_fd, self.route = program.stdin_fd, program.stdout_fd, program.route
        for descriptor in (self.stdin_fd, self.stdout_fd):
            # Linux alone has it, and there is a limit to what a user may have of it.
            if hasattr(fcntl, "F_SETPIPE_SZ"):
                with suppress(OSError):
                    fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def error(self, what: str) -> HostUnreachable:
        """For whoever found a pipe broken or ended too soon, or waited too long: why. `what` was being done."""
        return LinkLost(
            f"{what} on {self._host} broke off: {why_over(self._program)}",
            host=self._host,
            hint="try again once the host can be reached: what is there decides",
        )

    def cut(self) -> None:
        """End the link at once, from any thread: whoever waits in a pipe is woken. `close` has still to be called."""
        self._program.cut()

    def close(self, *, grace_s: float = 5.0) -> None:
        """The program finds its input at an end, its output with no reader, and ends; else it is ended.

        No other thread may be in a read or write of the pipes.
        """
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            os.close(self.stdin_fd)
            os.close(self.stdout_fd)
            self._program.end(grace_s)


def open_stream(
    name: str,
    hosts: HostsFile,
    settings: SshSettings,
    pool: Pool,
    script: Script,
    sentinel: str,
    *,
    connect_s: float = 30.0,
    client: Client = "auto",
) -> ByteStream:
    """Run a script that ends with an `exec` of a program, which prints the line `SENTINEL ready` and then waits.

    Instead of that it may print `SENTINEL failed WHY` and end. Nothing of it may read its input before it is ready.
    `sentinel`: random, without spaces. Nothing behind that line is read here, whatever comes before it is passed over.

    Raises ConfigError, HostUnreachable (nothing was run), LinkLost, JobFailed.
    """
    deadline_s = time.monotonic() + connect_s
    if name == LOCAL:
        return _begun(name, on_this_machine(), script, sentinel, deadline_s)
    # It refuses a name that is not there, with a hint.
    open_shell(name, hosts, settings, pool)
    route = route_to(name, hosts, settings)
    ssh = None if client == "paramiko" else shutil.which("ssh")
    if ssh is None:
        if client == "ssh":
            raise ConfigError("there is no `ssh` on PATH", hint="install the OpenSSH client")
        from dflashctl.transport.bulk_channel import ChannelProgram

        program = ChannelProgram(route, name, deadline_s - time.monotonic())
        return _begun(name, program, script, sentinel, deadline_s)
    from dflashctl.transport.ssh_connection import CIPHERS

    # First by a connection of our own: it keeps the key of a host that is new, and says best what is wrong.
    cipher = pool.connection(route, name, deadline_s - time.monotonic()).cipher
    with tempfile.TemporaryDirectory(prefix="dflashctl-ssh-") as folder:
        left_s = max(1.0, deadline_s - time.monotonic())
        argv = ssh_argv(ssh, route, Path(folder), CIPHERS, left_s, COMMAND)
        return _begun(name, over_ssh(argv, cipher), script, sentinel, deadline_s)


def _begun(host: str, program: Program, script: Script, sentinel: str, deadline_s: float) -> ByteStream:
    stream = ByteStream(host, program)
    try:
        begin(host, program, script, sentinel, deadline_s)
    except BaseException:
        stream.close(grace_s=0.0)
        raise
    return stream
