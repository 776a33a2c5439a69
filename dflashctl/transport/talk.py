"""A script's bytes on their way over one SSH channel. A thread of its own feeds and drains it, so that whoever asked
can always leave: at a limit, or at Ctrl-C."""

import queue
import select
import threading
from typing import TYPE_CHECKING, Literal

from dflashctl.transport.framing import LAST
from dflashctl.transport.unreachable import said

if TYPE_CHECKING:
    from paramiko import Channel

    from dflashctl.transport.ssh_connection import Connection

COMMAND = "/bin/sh -s"
READ_BYTES = 64 * 1024
LOOK_S = 0.25
"""So often a waiting thread looks whether anybody still wants the answer."""
FULL_S = 0.02
"""Nothing tells that there is room to send again; so often it is tried."""

Piece = tuple[Literal["out", "err"], bytes]


class Broken(Exception):
    """The talk did not come to an end, for a reason in words."""


class Talk:
    """`get` gives the output piece by piece; `abandon` says that nobody wants the rest."""

    def __init__(self, connection: "Connection", sent: bytes, timeout_s: float) -> None:
        """`sent` ends with framing.LAST."""
        assert sent.endswith(LAST)
        self._pieces: queue.Queue[Piece | Exception | None] = queue.Queue(maxsize=64)
        self._lock = threading.Lock()
        self._is_abandoned = False
        self._may_have_run = False
        threading.Thread(target=self._talk, args=(connection, sent, timeout_s), name="ssh-talk", daemon=True).start()

    def get(self, timeout_s: float) -> Piece | None:
        """None once there is no more. Raises queue.Empty and Broken."""
        piece = self._pieces.get(timeout=max(0.0, timeout_s))
        if isinstance(piece, Exception):
            raise piece
        return piece

    def abandon(self) -> bool:
        """Nothing more is sent from now on. Whether all of the script may have been sent before."""
        with self._lock:
            self._is_abandoned = True
            return self._may_have_run

    def _talk(self, connection: "Connection", sent: bytes, timeout_s: float) -> None:
        from paramiko import ChannelException, SSHException

        end: Exception | None = None
        try:
            with connection.session(timeout_s) as channel:
                channel.exec_command(COMMAND)
                self._pump(channel, sent)
        except ChannelException as error:
            end = Broken(f"it opens no session ({error.text})")
        except (SSHException, OSError, EOFError) as error:
            end = Broken(said(error))
        except Exception as error:  # noqa: BLE001 - a bug, raised where the answer is awaited
            end = error
        self._put(end)

    def _pump(self, channel: "Channel", sent: bytes) -> None:
        """Sends while there is room and something to send; reads whatever there is."""
        poll = select.poll()
        poll.register(channel.fileno(), select.POLLIN)
        unsent = [memoryview(sent)[: -len(LAST)], memoryview(sent)[-len(LAST) :]]
        while not self._is_abandoned:
            # Asked first: what came before the end is in the buffers by then.
            has_ended = channel.closed or channel.eof_received
            if unsent and channel.send_ready():
                self._send_some(channel, unsent)
            elif not channel.recv_ready() and not channel.recv_stderr_ready():
                if has_ended:
                    return
                poll.poll((FULL_S if unsent else LOOK_S) * 1000)
            while channel.recv_ready() and self._put(("out", channel.recv(READ_BYTES))):
                pass
            while channel.recv_stderr_ready() and self._put(("err", channel.recv_stderr(READ_BYTES))):
                pass

    def _send_some(self, channel: "Channel", unsent: list[memoryview]) -> None:
        with self._lock:
            if self._is_abandoned:
                return
            if len(unsent) == 1:
                self._may_have_run = True
        unsent[0] = unsent[0][channel.send(bytes(unsent[0][:READ_BYTES])) :]
        if not unsent[0]:
            del unsent[0]
        if not unsent:
            channel.shutdown_write()

    def _put(self, piece: Piece | Exception | None) -> bool:
        """Waits while the reader is slow. False if nobody reads any more."""
        while not self._is_abandoned:
            try:
                self._pieces.put(piece, timeout=LOOK_S)
            except queue.Full:
                continue
            return True
        return False
