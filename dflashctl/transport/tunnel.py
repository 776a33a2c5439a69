"""A port of this machine's loopback that leads to one of a host's.

Loads paramiko: imported only where a tunnel is opened.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from paramiko import Channel, SSHException

from dflashctl.errors import HostUnreachable

if TYPE_CHECKING:
    from dflashctl.transport.ssh_connection import Connection

OPEN_S = 10.0
READ_BYTES = 32 * 1024


@contextlib.contextmanager
def open_tunnel(connect: Callable[[], "Connection"], port: int) -> Iterator[int]:
    """Gives the port. `connect` is asked for each client, so that a lost connection ends those it had and no more."""
    listener = socket.create_server(("127.0.0.1", 0))
    tunnel = _Tunnel(listener, connect, port)
    threading.Thread(target=tunnel.accept, name="tunnel", daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        tunnel.close()


class _Tunnel:
    def __init__(self, listener: socket.socket, connect: Callable[[], "Connection"], port: int) -> None:
        self._listener, self._connect, self._port = listener, connect, port
        self._lock = threading.Lock()
        self._is_closed = False
        self._open: set[socket.socket | Channel] = set()

    def accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), name="tunnel-client", daemon=True).start()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            ends, self._open = list(self._open), set()
        # A closed listener does not wake a thread that waits in it; a shut one does.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in ends:
            _cut(end)

    def _serve(self, client: socket.socket) -> None:
        try:
            channel = self._connect().to("127.0.0.1", self._port, OPEN_S)
        except (HostUnreachable, SSHException, OSError, EOFError):
            # As if nothing listened: the client sees its connection closed.
            _cut(client)
            return
        with self._lock:
            is_wanted = not self._is_closed
            self._open |= {client, channel}
        if is_wanted:
            back = threading.Thread(target=_pour, args=(channel, client), name="tunnel-back", daemon=True)
            back.start()
            _pour(client, channel)
            back.join()
        with self._lock:
            self._open -= {client, channel}
        _cut(client)
        _cut(channel)


def _pour(source: socket.socket | Channel, sink: socket.socket | Channel) -> None:
    """Until the source has ended, which the sink is told; it may go on in the other direction."""
    try:
        while data := source.recv(READ_BYTES):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except (SSHException, OSError, EOFError):
        _cut(source)
        _cut(sink)


def _cut(end: socket.socket | Channel) -> None:
    with contextlib.suppress(SSHException, OSError, EOFError):
        end.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(SSHException, OSError, EOFError):
        end.close()
