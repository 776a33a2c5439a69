"""Reaching a host: start a job there, follow its events, stop it. Knows nothing of GPUs, runs or stages.

`local.py` is the one way that exists; a host behind SSH is a second class with these members.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Any, Protocol

from dflashctl.transport.http import Reply
from dflashctl.transport.process import Presence
from dflashctl_remote.spec.process import ProcessToken


@dataclass(frozen=True)
class Job:
    """A process to start: no shell, no string to quote."""

    name: str
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    """Added to the host's own environment."""
    events: Path
    log: Path
    """Receives stdout and stderr."""
    is_detached: bool = False
    """Outlives the terminal that it was started from."""


@dataclass(frozen=True)
class Git:
    """The commit of the working tree that the code came from."""

    sha: str
    is_dirty: bool


class JobHandle(Protocol):
    """A job that this process started."""

    @property
    def pid(self) -> int: ...

    @property
    def token(self) -> ProcessToken | None:
        """Who it is, or was if it has ended; None on a host that does not tell (no Linux)."""
        ...

    def events(self, *, until: Callable[[], bool] | None = None) -> Iterator[Any]:
        """Events as they come, until the job has ended or `until` says so; continues where an earlier call left."""
        ...

    def interrupt(self) -> None:
        """Ask it to stop in good order."""
        ...

    def kill(self) -> None:
        """End it now; what it was writing is lost."""
        ...

    def wait(self) -> int:
        """Its exit code; negative is the signal that ended it."""
        ...

    def log_tail(self, num_lines: int) -> str: ...


class Transport(Protocol):
    name: str

    def python(self) -> str:
        """The interpreter that jobs run under."""
        ...

    def missing_modules(self, names: Sequence[str]) -> tuple[str, ...]:
        """Those of the top-level modules that the host's interpreter does not find."""
        ...

    def start(self, job: Job) -> JobHandle: ...

    def follow(self, events: Path, *, until: Callable[[], bool]) -> Iterator[Any]:
        """Events of a job that another process started, from the first one until `until` says so."""
        ...

    def token_of(self, pid: int, marker: str) -> ProcessToken | None:
        """Who a process is now; None if it is not there."""
        ...

    def presence(self, token: ProcessToken) -> Presence:
        """Whether the very process is there."""
        ...

    def send(self, token: ProcessToken, number: Signals) -> bool:
        """Signal the very process; False if it is gone. No other process is ever hit."""
        ...

    def wait_gone(self, token: ProcessToken, timeout_s: float) -> bool:
        """Whether it ended within the time."""
        ...

    def family(self, token: ProcessToken) -> tuple[ProcessToken, ...]:
        """The living processes that carry the token's marker or are in its session, itself among them."""
        ...

    def lock(self, path: Path) -> AbstractContextManager[int | None]:
        """Held while the context is open; gives None, or the pid of the process that holds it already."""
        ...

    def is_port_free(self, port: int) -> bool: ...

    def get(self, url: str, *, timeout_s: float) -> Reply:
        """A question to a server that listens on that host."""
        ...

    def post(self, url: str, body: dict[str, Any], *, timeout_s: float) -> Reply: ...

    def is_alive(self, pid: int, marker: str) -> bool:
        """Whether the process exists and has `marker` in its own command line."""
        ...

    def git(self, folder: Path) -> Git | None:
        """None outside a working tree, or without git."""
        ...
