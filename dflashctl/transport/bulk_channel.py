"""A program with raw pipes over a connection of paramiko, for machines without `ssh`: slower, and as careful.

The connection is its own: bulk on a shared one would hold up every question to the host.
"""

import os
import select
import threading
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from dflashctl.errors import HostUnreachable
from dflashctl.transport.bulk_process import LOOK_S, READ_BYTES, ErrTail
from dflashctl.transport.pool import Pool
from dflashctl.transport.ssh_config import Route
from dflashctl.transport.talk import COMMAND

if TYPE_CHECKING:
    from paramiko import Channel

    from dflashctl.transport.ssh_connection import Connection

SILENT_S = 60.0
"""A living connection is asked something every 15 s, and has answered long before this."""


class ChannelProgram:
    def __init__(self, route: Route, host: str, timeout_s: float) -> None:
        """Raises HostUnreachable: nothing was run."""
        from paramiko import SSHException

        self.route = "paramiko"
        deadline_s = time.monotonic() + timeout_s
        self._err = ErrTail()
        with ExitStack() as stack:
            self._pool = Pool()
            stack.callback(self._pool.close)
            self._connection: Connection = self._pool.connection(route, host, timeout_s)
            try:
                left_s = max(0.0, deadline_s - time.monotonic())
                self._channel: Channel = stack.enter_context(self._connection.session(left_s))
                self._channel.exec_command(COMMAND)
            except (SSHException, OSError, EOFError) as error:
                raise HostUnreachable(
                    f"{host} cannot be reached: it opens no session ({error})", host=host, hint="try again"
                ) from error
            self._given_fd, self.stdin_fd = os.pipe()
            self.stdout_fd, self._taken_fd = os.pipe()
            self._stack = stack.pop_all()
        self._pumps = [
            threading.Thread(target=pump, name="bulk-paramiko", daemon=True) for pump in (self._give, self._take)
        ]
        for pump in self._pumps:
            pump.start()

    @property
    def err(self) -> bytes:
        return self._err.text

    @property
    def code(self) -> int | None:
        code = self._channel.exit_status
        return None if code < 0 else code

    def wait(self, timeout_s: float) -> bool:
        return self._channel.status_event.wait(max(0.0, timeout_s))

    def cut(self) -> None:
        self._pool.close()

    def end(self, grace_s: float) -> None:
        from paramiko import SSHException

        self.wait(grace_s)
        # First: a channel's last word over a dead link would be waited for.
        self.cut()
        with suppress(SSHException, OSError, EOFError):
            self._stack.close()
        for pump in self._pumps:
            pump.join()

    def _give(self) -> None:
        from paramiko import SSHException

        poll = select.poll()
        poll.register(self._given_fd, select.POLLIN)
        try:
            with suppress(SSHException, OSError, EOFError):
                while not self._channel.closed:
                    if not poll.poll(LOOK_S * 1000):
                        continue
                    data = os.read(self._given_fd, READ_BYTES)
                    if not data:
                        self._channel.shutdown_write()
                        return
                    self._channel.sendall(data)
        finally:
            os.close(self._given_fd)

    def _take(self) -> None:
        from paramiko import SSHException

        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        try:
            with suppress(SSHException, OSError, EOFError):
                while True:
                    # Asked first: what came before the end is in the buffers by then.
                    has_ended = self._channel.closed or self._channel.eof_received
                    while self._channel.recv_stderr_ready():
                        self._err.add(self._channel.recv_stderr(READ_BYTES))
                    if self._channel.recv_ready():
                        _write(self._taken_fd, self._channel.recv(READ_BYTES))
                    elif has_ended:
                        return
                    elif not poll.poll(LOOK_S * 1000):
                        # Paramiko's own thread, which notices a dead link, can hang while new keys are agreed on.
                        self._connection.close_if_silent_since(time.monotonic() - SILENT_S)
            # Nobody reads: so the program is told.
            with suppress(SSHException, OSError, EOFError):
                self._channel.close()
        finally:
            os.close(self._taken_fd)


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
