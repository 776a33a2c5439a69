"""A host behind SSH as a shell: scripts over one pooled connection, each on a channel of its own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dflashctl.config.hosts import HostsFile
from dflashctl.config.schema import nearest
from dflashctl.config.ssh import SshSettings
from dflashctl.defaults import LOCAL
from dflashctl.errors import ConfigError, JobFailed
from dflashctl.transport import files
from dflashctl.transport.exchange import Exchange
from dflashctl.transport.local_shell import LocalShell
from dflashctl.transport.pool import Pool
from dflashctl.transport.shell import RUN_S, Answer, Script, Shell
from dflashctl.transport.ssh_config import Route, route_to
from dflashctl.transport.ssh_library import load_connection

if TYPE_CHECKING:
    from dflashctl.transport.ssh_connection import Connection


def open_shell(name: str, hosts: HostsFile, settings: SshSettings, pool: Pool | None = None) -> Shell:
    """A host by its name; reached when it is first asked something. Without a pool it has one of its own.

    Raises ConfigError for a host that is not in the inventory.
    """
    if name == LOCAL:
        return LocalShell(LOCAL)
    if name not in hosts.hosts:
        near = nearest(name, (LOCAL, *hosts.hosts))
        hint = f"did you mean {near}?" if near else f"known: {', '.join((LOCAL, *hosts.hosts))}"
        raise ConfigError(f"host {name} is not in hosts.yaml", hint=hint)
    owned = Pool() if pool is None else pool
    return SshShell(name, lambda: route_to(name, hosts, settings), owned, owns_pool=pool is None)


class SshShell:
    def __init__(self, name: str, find_route: Callable[[], Route], pool: Pool, *, owns_pool: bool = False) -> None:
        """`find_route`: asked when the first connection is needed; may raise ConfigError. An owned pool is closed
        with the shell."""
        self._name = name
        self._find_route = find_route
        self._route: Route | None = None
        self._pool = pool
        self._owns_pool = owns_pool

    @property
    def name(self) -> str:
        return self._name

    def reach(self) -> None:
        # Here rather than in the thread that connects, which would share the interpreter with whatever is done next.
        load_connection()
        self._pool.begin(self._found_route(), self._name, RUN_S)

    def run(self, script: Script, *, timeout_s: float = RUN_S) -> Answer:
        exchange = Exchange(script, self._name, self._connection)
        return exchange.answer(b"".join(exchange.output(silence_s=timeout_s, timeout_s=timeout_s)))

    def stream(self, script: Script, *, silence_s: float, timeout_s: float) -> Iterator[bytes]:
        exchange = Exchange(script, self._name, self._connection)
        yield from exchange.output(silence_s=silence_s, timeout_s=timeout_s)
        answer = exchange.answer(b"")
        if answer.code != 0:
            raise JobFailed(f"{script.name} on {self._name} failed: {files.reason(answer)}", host=self._name)

    def put(self, content: bytes, path: str, *, mode: int = 0o600, timeout_s: float = RUN_S) -> None:
        files.put(self.run, self._name, content, path, mode=mode, timeout_s=timeout_s)

    def get(self, path: str, *, offset_bytes: int = 0, limit_bytes: int, timeout_s: float = RUN_S) -> bytes:
        return files.get(
            self.run, self._name, path, offset_bytes=offset_bytes, limit_bytes=limit_bytes, timeout_s=timeout_s
        )

    @contextmanager
    def tunnel(self, port: int) -> Iterator[int]:
        from dflashctl.transport.tunnel import open_tunnel

        self._connection(RUN_S)
        with open_tunnel(lambda: self._connection(RUN_S), port) as own_port:
            yield own_port

    def close(self) -> None:
        if self._owns_pool:
            self._pool.close()

    def _connection(self, timeout_s: float) -> "Connection":
        return self._pool.connection(self._found_route(), self._name, timeout_s)

    def _found_route(self) -> Route:
        if self._route is None:
            self._route = self._find_route()
        return self._route
