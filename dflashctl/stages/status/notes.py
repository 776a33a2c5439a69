"""The hand-kept half of the status: goals, constraints, decisions, what blocks, what is next, what one must know.

notes.jsonl is only ever appended to, a line an entry or an end of one, so that two writers lose nothing of each other.
"""

import difflib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from dflashctl.errors import ConfigError
from dflashctl_remote.spec.base import Spec

NoteKind = Literal["goal", "constraint", "decision", "blocked", "next", "context"]
KINDS: tuple[NoteKind, ...] = ("goal", "constraint", "decision", "blocked", "next", "context")
FILE_NAME = "notes.jsonl"


class Added(Spec):
    entry: Literal["added"] = "added"
    id: str
    kind: NoteKind
    text: str
    who: str
    at_s: float


class Done(Spec):
    entry: Literal["done"] = "done"
    id: str
    who: str
    at_s: float


_ENTRY: TypeAdapter[Added | Done] = TypeAdapter(Annotated[Added | Done, Field(discriminator="entry")])


@dataclass(frozen=True)
class Note:
    id: str
    kind: NoteKind
    text: str
    who: str
    at_s: float
    done_at_s: float | None
    """When it was reached, lifted or withdrawn."""
    done_by: str | None

    @property
    def is_open(self) -> bool:
        return self.done_at_s is None


@dataclass(frozen=True)
class Notes:
    notes: tuple[Note, ...]
    """Oldest first."""
    bad_lines: tuple[int, ...]
    """Numbers of lines that are no entry: half a line of a writer that was killed."""

    def of(self, kind: NoteKind, *, with_done: bool = False) -> tuple[Note, ...]:
        return tuple(note for note in self.notes if note.kind == kind and (note.is_open or with_done))


def read_notes(path: Path) -> Notes:
    """Empty if there is no file yet."""
    if not path.is_file():
        return Notes((), ())
    notes: dict[str, Note] = {}
    bad = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            entry = _ENTRY.validate_json(line)
        except ValidationError:
            bad.append(number)
            continue
        if isinstance(entry, Added):
            notes[entry.id] = Note(entry.id, entry.kind, entry.text, entry.who, entry.at_s, None, None)
        elif entry.id in notes:
            old = notes[entry.id]
            notes[entry.id] = Note(old.id, old.kind, old.text, old.who, old.at_s, entry.at_s, entry.who)
    return Notes(tuple(notes.values()), tuple(bad))


def add(path: Path, kind: NoteKind, text: str, *, who: str, now_s: float) -> Note:
    """Raises ConfigError for an empty text; line breaks become spaces, since a note is one line."""
    line = " ".join(text.split())
    if not line:
        raise ConfigError(f"a {kind} needs a text, found none", hint=f'dflashctl note {kind} add "..."')
    entry = Added(id=secrets.token_hex(3), kind=kind, text=line, who=who, at_s=now_s)
    _append(path, entry)
    return Note(entry.id, kind, line, who, now_s, None, None)


def finish(path: Path, kind: NoteKind, note_id: str, *, who: str, now_s: float) -> Note:
    """Mark a note as reached, lifted or withdrawn. Raises ConfigError if there is no open one of that kind and id."""
    found = {note.id: note for note in read_notes(path).of(kind)}
    if note_id not in found:
        near = difflib.get_close_matches(note_id, found, n=1)
        there = ", ".join(f"{note.id} ({note.text[:30]})" for note in found.values()) or "none"
        hint = f"did you mean {near[0]}?" if near else f"open: {there}"
        raise ConfigError(f"there is no open {kind} {note_id}", hint=hint)
    _append(path, Done(id=note_id, who=who, at_s=now_s))
    note = found[note_id]
    return Note(note.id, note.kind, note.text, note.who, note.at_s, now_s, who)


def _append(path: Path, entry: Added | Done) -> None:
    """One write at the end of the file, after a line break if a killed writer left half a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size_bytes = os.fstat(descriptor).st_size
        is_cut = size_bytes > 0 and os.pread(descriptor, 1, size_bytes - 1) != b"\n"
        os.write(descriptor, (b"\n" if is_cut else b"") + entry.model_dump_json().encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
