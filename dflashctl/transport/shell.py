"""A host as a shell: the narrow interface that every host answers to, whatever lies between. Knows no runs.

`local_shell.py` is this machine, `ssh_shell.py` a host behind SSH, `fake_shell.py` recorded answers for tests.
A script always travels on the standard input of `/bin/sh -s`, never in an argument list.
"""

import re
import shlex
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

RUN_S = 30.0
"""A question that takes longer has gone wrong."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Script:
    """A program for POSIX sh: a fixed text, and the values of variables that it reads.

    Values are the only way for data to get into a script: they are quoted here and nowhere else, and may hold
    anything but NUL.
    """

    name: str
    """For people, in errors and dry runs."""
    text: str
    values: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, str], ...] = ()
    """As values, and never shown."""

    def source(self) -> str:
        """What is sent. Raises ValueError for a variable's name that is none, or a value with a NUL."""
        return self._assigned((*self.values, *self.secrets)) + self.text

    def shown(self) -> str:
        """The same for people's eyes: of each secret only how long it is."""
        masked = tuple((name, f"<{len(value)} characters>") for name, value in self.secrets)
        return self._assigned((*self.values, *masked)) + self.text

    def _assigned(self, values: tuple[tuple[str, str], ...]) -> str:
        for name, value in values:
            if not _NAME.fullmatch(name) or "\0" in value:
                raise ValueError(f"script {self.name}: {name} cannot be given to a shell")
        return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values)


@dataclass(frozen=True)
class Answer:
    """A script that ran to its end."""

    code: int
    out: bytes
    err: str
    """The end of stderr: for people, never parsed."""
    num_noise_bytes: int = 0
    """Printed on stdout before the answer, by a login shell that is not silent."""
    noise: bytes = b""
    """The first of it: for people, never parsed."""


class Shell(Protocol):
    @property
    def name(self) -> str:
        """The host's, as in hosts.yaml."""
        ...

    def reach(self) -> None:
        """Begin to connect, and return at once; what goes wrong is told to whoever asks something first."""
        ...

    def run(self, script: Script, *, timeout_s: float = RUN_S) -> Answer:
        """Run a script to its end. Whatever its exit code, that is an answer.

        Raises HostUnreachable if it was not run, LinkLost if it may have been: no complete answer came.
        """
        ...

    def stream(self, script: Script, *, silence_s: float, timeout_s: float) -> Iterator[bytes]:
        """A script's output as it comes. Raises as `run`, JobFailed if its exit code is not 0."""
        ...

    def put(self, content: bytes, path: str, *, mode: int = 0o600, timeout_s: float = RUN_S) -> None:
        """Write a file whole: aside, compared by size, then renamed. Raises as `run`, JobFailed if it cannot be."""
        ...

    def get(self, path: str, *, offset_bytes: int = 0, limit_bytes: int, timeout_s: float = RUN_S) -> bytes:
        """At most so many bytes of a file from an offset. Raises as `run`, JobFailed if there is no such file."""
        ...

    def tunnel(self, port: int) -> AbstractContextManager[int]:
        """A port of this machine's loopback that leads to one of the host's, while the context is open."""
        ...

    def close(self) -> None: ...
