"""What a doctor says of a host, line by line, and what a script told it."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "bad", "unknown"]
"""note: works, but know this. unknown: it could not be asked, so it is neither free nor in order."""


@dataclass(frozen=True)
class Finding:
    topic: str
    level: Level
    text: str
    cure: str = ""
    """One line: what to do about it. Whatever is bad has one."""

    def __post_init__(self) -> None:
        assert self.level != "bad" or self.cure, self


@dataclass(frozen=True)
class Told:
    """key=value lines, in order. A key that was not told has no value: that is not the same as an empty one."""

    pairs: tuple[tuple[str, str], ...] = ()

    @classmethod
    def read(cls, out: bytes) -> "Told":
        lines = out.decode("utf-8", "replace").split("\n")
        return cls(
            tuple((key, value.strip()) for key, found, value in (line.partition("=") for line in lines) if found)
        )

    def has(self, key: str) -> bool:
        return any(key == told for told, _ in self.pairs)

    def one(self, key: str) -> str:
        """Its last value; empty if there is none."""
        return next((value for told, value in reversed(self.pairs) if key == told), "")

    def all(self, key: str) -> tuple[str, ...]:
        return tuple(value for told, value in self.pairs if key == told)
