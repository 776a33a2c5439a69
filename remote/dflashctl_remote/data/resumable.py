"""Lines of JSON that a long job appends beside its output, so that the same command resumes after a kill.

`<output>.partial/` holds lines.jsonl and origin.json, which says what the lines depend on: lines of another origin
are never mixed in. Publishing the output is the job's own business.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from dflashctl_remote.spec.errors import ArtifactCorrupt
from dflashctl_remote.spec.manifest import write_json

ORIGIN_NAME = "origin.json"


class ResumableLines:
    """The lines of an interrupted job of the same origin, and room for more."""

    def __init__(self, output: Path, origin: dict[str, Any], *, name: str = "lines.jsonl") -> None:
        """Raises ArtifactCorrupt if a line that was written whole cannot be read."""
        self.folder = output.with_name(f"{output.name}.partial")
        self._path = self.folder / name
        self.found: tuple[dict[str, Any], ...] = ()
        """What was there already, in the order written."""
        self.was_dropped = False
        """An unfinished job of another origin lay there and is gone."""
        if self.folder.is_dir():
            self.was_dropped = read_origin(self.folder / ORIGIN_NAME) != origin
            if self.was_dropped:
                shutil.rmtree(self.folder)
            else:
                self.found = _whole_lines(self._path)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / ORIGIN_NAME, origin)

    def append(self, *lines: str) -> None:
        """On the disk when this returns."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())

    def remove(self) -> None:
        """Once the output is published."""
        shutil.rmtree(self.folder)


def read_origin(path: Path) -> dict[str, Any]:
    """Empty if there is none, or none that was written whole."""
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def differing_keys(one: dict[str, Any], other: dict[str, Any]) -> str:
    """For a message: what two origins do not share."""
    return ", ".join(sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key)))


def _whole_lines(path: Path) -> tuple[dict[str, Any], ...]:
    """A last line cut short by a kill is taken off the file."""
    if not path.is_file():
        return ()
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(path, len(whole))
    try:
        return tuple(json.loads(line) for line in whole.splitlines())
    except ValueError as error:
        raise ArtifactCorrupt(f"{path} holds a line that is not JSON: {error}", hint=f"remove {path.parent}") from error
