"""Connections that are open, one for each way to a host; a jump host's is shared by those behind it."""

import threading
from concurrent.futures import Future, TimeoutError
from typing import TYPE_CHECKING

from dflashctl.errors import HostUnreachable
from dflashctl.transport.ssh_config import Route
from dflashctl.transport.ssh_library import load_connection

if TYPE_CHECKING:
    from dflashctl.transport.ssh_connection import Connection


class Pool:
    """May be used by several threads. Who asks for a connection that is being opened waits for that one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ways: dict[Route, Future[Connection]] = {}
        self._is_closed = False

    def connection(self, route: Route, host: str, timeout_s: float) -> "Connection":
        """The open one, or a new one. Raises HostUnreachable, saying `host`."""
        try:
            return self.begin(route, host, timeout_s).result(timeout=max(0.0, timeout_s))
        except TimeoutError as error:
            raise HostUnreachable(
                f"{host} cannot be reached: no connection within {timeout_s:.3g} s",
                host=host,
                hint=f"ssh -v {route[-1].by_hand}",
            ) from error

    def begin(self, route: Route, host: str, timeout_s: float) -> "Future[Connection]":
        """The same, without waiting for it."""
        with self._lock:
            future = self._ways.get(route)
            if future is not None and not _is_useless(future):
                return future
            future = self._ways[route] = Future()
        # In a thread: names are looked up in calls that Ctrl-C does not end.
        threading.Thread(
            target=self._open, args=(route, host, timeout_s, future), name="ssh-connect", daemon=True
        ).start()
        return future

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            # Jump hosts first: what runs through a closed connection is not waited for.
            futures, self._ways = [self._ways[route] for route in sorted(self._ways, key=len)], {}
        for future in futures:
            if future.done() and future.exception() is None:
                future.result().close()

    def _open(self, route: Route, host: str, timeout_s: float, future: "Future[Connection]") -> None:
        try:
            connection = self._reach(route, host, timeout_s)
        except Exception as error:  # noqa: BLE001 - handed to whoever asked
            future.set_exception(error)
            return
        with self._lock:
            is_wanted = not self._is_closed
            future.set_result(connection)
        if not is_wanted:
            connection.close()

    def _reach(self, route: Route, host: str, timeout_s: float) -> "Connection":
        connect = load_connection()

        if len(route) == 1:
            return connect(route[0], None, host)
        jump = self._jump(route, host, timeout_s)
        try:
            return connect(route[-1], jump, host)
        except HostUnreachable:
            if jump.is_open:
                raise
        # The one to the jump host had died unnoticed.
        return connect(route[-1], self._jump(route, host, timeout_s), host)

    def _jump(self, route: Route, host: str, timeout_s: float) -> "Connection":
        try:
            return self.connection(route[:-1], route[-2].alias, timeout_s)
        except HostUnreachable as error:
            raise HostUnreachable(
                f"{host} cannot be reached: its jump host {error.message}", host=host, hint=error.hint
            ) from error


def _is_useless(future: "Future[Connection]") -> bool:
    return future.done() and (future.exception() is not None or not future.result().is_open)
