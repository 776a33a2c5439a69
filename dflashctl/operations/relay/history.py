"""What relays this machine has begun, and which of them came to their end: one line of JSON each, appended."""

import contextlib
import fcntl
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from dflashctl.config.folders import state_folder

Outcome = Literal["moving", "done", "failed", "interrupted"]
MOST_LINES = 2000


@dataclass(frozen=True)
class Record:
    """The newest of a relay's lines counts. `arguments`: what to give to the command again."""

    name: str
    at_s: float
    outcome: Outcome
    kind: Literal["ckpt", "path"]
    source: str
    dest: str
    arguments: tuple[str, ...]
    total_bytes: int = 0
    sent_bytes: int = 0
    text: str = ""


def history_path() -> Path:
    return state_folder() / "relays.jsonl"


def note(record: Record) -> None:
    """A disk that is full or read-only keeps no history, and stops no relay."""
    path = history_path()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(json.dumps({**asdict(record), "at_s": time.time()}) + "\n")


def records() -> tuple[Record, ...]:
    """The newest line of each, oldest first."""
    try:
        lines = history_path().read_text(encoding="utf-8").splitlines()[-MOST_LINES:]
    except FileNotFoundError:
        return ()
    found: dict[str, Record] = {}
    for line in lines:
        with contextlib.suppress(ValueError, TypeError):
            told: dict[str, Any] = json.loads(line)
            record = Record(**{**told, "arguments": tuple(told["arguments"])})
            found.pop(record.name, None)
            found[record.name] = record
    return tuple(found.values())
