"""What relays this machine has begun, and which of them came to their end: one line of JSON each, appended."""

import contextlib
import fcntl
import json
import os
import secrets
import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from dflashctl.config.folders import state_folder
from dflashctl.transport.process import presence, token_of
from dflashctl_remote.spec.process import ProcessToken

Outcome = Literal["moving", "done", "failed", "interrupted", "broken off"]
"""Broken off: nobody told its end, and who moved it is no more."""
Kind = Literal["ckpt", "path"]
MOST_LINES = 2000


@dataclass(frozen=True)
class Record:
    """The newest of a relay's lines counts."""

    name: str
    at_s: float
    outcome: Outcome
    kind: Kind
    source: str
    dest: str
    what: tuple[str, ...]
    """To give to the command again: what is moved, and where to."""
    how: tuple[str, ...] = ()
    """And how."""
    total_bytes: int = 0
    sent_bytes: int = 0
    text: str = ""
    process: ProcessToken | None = None
    """Who moves it, or did."""

    @property
    def arguments(self) -> tuple[str, ...]:
        return (*self.what, *self.how)


def history_path() -> Path:
    return state_folder() / "relays.jsonl"


def begun(kind: Kind, source: str, dest: str, what: tuple[str, ...], how: tuple[str, ...]) -> Record:
    """Of a relay that begins now, by this process. One that goes on with an unfinished one has its name."""
    left = [one.name for one in records() if one.what == what and one.outcome not in ("done", "moving")]
    fresh = f"relay-{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    return Record(
        left[-1] if left else fresh, time.time(), "moving", kind, source, dest, what, how,
        process=token_of(os.getpid(), ""),
    )  # fmt: skip


def note(record: Record) -> None:
    """A disk that is full or read-only keeps no history, and stops no relay."""
    path = history_path()
    told = {field.name: getattr(record, field.name) for field in fields(record)}
    told |= {"at_s": time.time(), "process": None if record.process is None else record.process.model_dump()}
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            end = file.seek(0, os.SEEK_END)
            # A line that was cut off must not swallow this one.
            is_cut = end > 0 and os.pread(file.fileno(), 1, end - 1) != b"\n"
            file.write(b"\n" * is_cut + json.dumps(told).encode() + b"\n")


def records() -> tuple[Record, ...]:
    """The newest line of each, oldest first. Lines that cannot be read are none."""
    try:
        lines = history_path().read_text(encoding="utf-8", errors="replace").splitlines()[-MOST_LINES:]
    except OSError:
        return ()
    found: dict[str, Record] = {}
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, KeyError):
            record = _record(json.loads(line))
            found.pop(record.name, None)
            found[record.name] = record
    return tuple(_as_it_is(record) for record in found.values())


def _record(told: dict[str, Any]) -> Record:
    """Raises ValueError, TypeError, KeyError for what was not written here."""
    process = told["process"]
    record = Record(**{**told, "what": _words(told["what"]), "how": _words(told["how"]),
                       "process": None if process is None else ProcessToken.model_validate(process)})  # fmt: skip
    words = (record.name, record.source, record.dest, record.text)
    numbers = (record.at_s, record.total_bytes, record.sent_bytes)
    if not all(isinstance(word, str) for word in words) or not all(isinstance(one, int | float) for one in numbers):
        raise ValueError("not as it was written")
    if record.outcome not in get_args(Outcome) or record.kind not in get_args(Kind):
        raise ValueError("not as it was written")
    return record


def _words(told: Any) -> tuple[str, ...]:
    if not isinstance(told, list) or not all(isinstance(word, str) for word in told):
        raise ValueError("no words")
    return tuple(told)


def _as_it_is(record: Record) -> Record:
    """Who was killed told nobody."""
    if record.outcome != "moving" or (record.process is not None and presence(record.process) == "alive"):
        return record
    return replace(record, outcome="broken off")
