"""The hand-kept half of the status: goals, constraints, decisions, what blocks, what is next, what one must know.

notes.jsonl is only ever appended to, a line an entry or an end of one, so that two writers lose nothing of each other.
"""

import dataclasses
import difflib
import errno
import os
import secrets
import unicodedata
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
    problem: str = ""
    """Why the file cannot be read at all."""

    def of(self, kind: NoteKind, *, with_done: bool = False) -> tuple[Note, ...]:
        return tuple(note for note in self.notes if note.kind == kind and (note.is_open or with_done))


def read_notes(path: Path) -> Notes:
    """Empty if there is no file yet. Raises OSError if it cannot be read."""
    if not path.exists():
        return Notes((), ())
    added: dict[str, Added] = {}
    ends: dict[str, Done] = {}
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
            added.setdefault(entry.id, entry)
        else:
            # Perhaps before the note itself: lines that git merged come in any order.
            ends.setdefault(entry.id, entry)
    return Notes(tuple(_note(entry, ends.get(entry.id)) for entry in added.values()), tuple(bad))


def notes_if_readable(path: Path) -> Notes:
    """For the status: notes that cannot be read must not hide the rest."""
    try:
        return read_notes(path)
    except OSError as error:
        return Notes((), (), f"{path} cannot be read: {error.strerror}")


def add(path: Path, kind: NoteKind, text: str, *, who: str, now_s: float) -> Note:
    """Line breaks become spaces: a note is one line. Raises ConfigError for an empty text, or control codes."""
    line = " ".join(text.split())
    if not line:
        raise ConfigError(f"a note `{kind}` needs a text, found none", hint=f'dflashctl note {kind} add "..."')
    bad = next((character for character in line if unicodedata.category(character) in ("Cc", "Cs")), None)
    if bad is not None:
        raise ConfigError(f"a note `{kind}` is text, found the control code U+{ord(bad):04X}", hint="leave it out")
    entry = Added(id=secrets.token_hex(4), kind=kind, text=line, who=who, at_s=now_s)
    _append(path, entry)
    return _note(entry, None)


def finish(path: Path, kind: NoteKind, note_id: str, *, who: str, now_s: float) -> Note:
    """Mark a note as reached, lifted or withdrawn. Raises ConfigError if there is no open one of that kind and id."""
    notes = read_notes(path)
    note = next((note for note in notes.of(kind) if note.id == note_id), None)
    if note is None:
        raise ConfigError(f"there is no open {kind} {note_id!r} in {path}", hint=_nearest(notes, kind, note_id))
    _append(path, Done(id=note_id, who=who, at_s=now_s))
    return dataclasses.replace(note, done_at_s=now_s, done_by=who)


def _nearest(notes: Notes, kind: NoteKind, note_id: str) -> str:
    """What was meant, as far as can be told."""
    same = next((note for note in notes.notes if note.id == note_id), None)
    if same is not None and same.kind != kind:
        return f"it is a {same.kind}: dflashctl note {same.kind} done {note_id}"
    if same is not None:
        return f"it was ended by {same.done_by} already: dflashctl note {kind} list --all"
    found = {note.id: note for note in notes.of(kind)}
    near = difflib.get_close_matches(note_id, found, n=1)
    if near:
        return f"did you mean {near[0]}?"
    return f"open: {', '.join(f'{note.id} ({note.text[:30]})' for note in found.values()) or 'none'}"


def _note(added: Added, end: Done | None) -> Note:
    done_at_s, done_by = (None, None) if end is None else (end.at_s, end.who)
    return Note(added.id, added.kind, added.text, added.who, added.at_s, done_at_s, done_by)


def _append(path: Path, entry: Added | Done) -> None:
    """One write at the end of the file, after a line break if a killed writer left half a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size_bytes = os.fstat(descriptor).st_size
        is_cut = size_bytes > 0 and os.pread(descriptor, 1, size_bytes - 1) != b"\n"
        line = (b"\n" if is_cut else b"") + entry.model_dump_json().encode() + b"\n"
        if os.write(descriptor, line) < len(line):
            raise OSError(errno.ENOSPC, "the disk is full, the note was not kept whole", str(path))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
