"""A host that answers as it was told to, for tests of decisions. What it was not told fails."""

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager

from dflashctl.transport.shell import RUN_S, Answer, Script


class FakeShell:
    """`answers`: for each script's name what it says, in turn; an exception is raised. The last one stays.

    Raises AssertionError for a script that it knows no answer to.
    """

    def __init__(self, answers: Mapping[str, list[Answer | Exception]], name: str = "fake") -> None:
        self._name = name
        self._answers = {key: deque(told) for key, told in answers.items()}
        self.ran: list[Script] = []
        self.files: dict[str, bytes] = {}

    @property
    def name(self) -> str:
        return self._name

    def reach(self) -> None:
        """It is here."""

    def run(self, script: Script, *, timeout_s: float = RUN_S) -> Answer:
        self.ran.append(script)
        told = self._answers.get(script.name)
        assert told, f"the fake host {self._name} was not told what to say to {script.name}"
        answer = told.popleft() if len(told) > 1 else told[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def stream(self, script: Script, *, silence_s: float, timeout_s: float) -> Iterator[bytes]:
        yield self.run(script, timeout_s=timeout_s).out

    def put(self, content: bytes, path: str, *, mode: int = 0o600, timeout_s: float = RUN_S) -> None:
        self.files[path] = content

    def get(self, path: str, *, offset_bytes: int = 0, limit_bytes: int, timeout_s: float = RUN_S) -> bytes:
        assert path in self.files, f"the fake host {self._name} has no file {path}"
        return self.files[path][offset_bytes : offset_bytes + limit_bytes]

    def tunnel(self, port: int) -> AbstractContextManager[int]:
        raise AssertionError(f"the fake host {self._name} has no tunnel")

    def close(self) -> None:
        pass
