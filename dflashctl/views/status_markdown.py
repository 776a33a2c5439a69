"""The status as the document that used to be kept by hand: seven sections, each line with its source and age."""

import time

from dflashctl.stages.status.fact import Fact, Snapshot, Subject
from dflashctl.stages.status.notes import Note, NoteKind, Notes
from dflashctl.views.palette import duration
from dflashctl.views.status import age_of

SPECIAL = "\\`*_{}[]<>#|"
BLOCKED_STATES = ("failed", "ended without a word", "lost to reboot", "unhealthy", "unreadable")


def markdown(snapshot: Snapshot, notes: Notes, command: str) -> str:
    """All of it is made anew each time; only the lines marked `by hand` were written by people."""
    made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(snapshot.at_s))
    lines = [
        "# Status",
        "",
        f"Made {made} on {snapshot.host} by `{command}` from {escaped(snapshot.workdir)}. "
        "Each line says where it was read and how old it is; do not edit, use `dflashctl note`.",
    ]
    lines += _section("Goal", _notes(notes, "goal", snapshot))
    lines += _section("Constraints & Preferences", _notes(notes, "constraint", snapshot))
    lines += _progress(snapshot, notes)
    lines += _section("Key Decisions", _notes(notes, "decision", snapshot))
    lines += _section("Next Steps", _notes(notes, "next", snapshot))
    lines += _section("Critical Context", [*_context(snapshot), *_notes(notes, "context", snapshot)])
    lines += _section("Relevant Files (by machine)", _files(snapshot))
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """The text with what Markdown would read as marks taken literally."""
    return "".join(f"\\{character}" if character in SPECIAL else character for character in text)


def _progress(snapshot: Snapshot, notes: Notes) -> list[str]:
    done: list[str] = []
    running: list[str] = []
    blocked: list[str] = []
    for subject in snapshot.subjects:
        {"done": done, "running": running, "blocked": blocked}[_where(subject)].extend(_subject(subject, snapshot))
    done += [_note(note, snapshot, is_done=True) for note in _ended(notes)]
    blocked += [_fact(problem, snapshot) for problem in snapshot.problems]
    blocked += [_note(note, snapshot) for note in notes.of("blocked")]
    empty = {
        "Done": "- not known: nothing finished here, and no note says so",
        "In Progress": "- not known: nothing runs here as far as this machine can see",
        "Blocked": "- not known: nothing failed here, and no note says so",
    }
    out = ["", "## Progress"]
    for title, words in (("Done", done), ("In Progress", running), ("Blocked", blocked)):
        out += ["", f"### {title}", *(words or [empty[title]])]
    return out


def _where(subject: Subject) -> str:
    state = subject.state.value
    if state in BLOCKED_STATES or subject.state.warning:
        return "blocked"
    if state in ("finished", "stopped") or subject.sort in ("benchmark", "dataset"):
        return "done"
    return "running"


def _ended(notes: Notes) -> list[Note]:
    kinds: tuple[NoteKind, ...] = ("goal", "next", "blocked")
    return [note for kind in kinds for note in notes.of(kind, with_done=True) if not note.is_open]


def _context(snapshot: Snapshot) -> list[str]:
    """The figures that decide, and what is odd about them."""
    names = ("tau", "served tau", "speed-up", "lossless", "tau since it started")
    facts = [(subject, fact) for subject in snapshot.subjects for fact in subject.facts if fact.name in names]
    lines = [_fact(fact, snapshot, f"{subject.sort} {subject.name}: ") for subject, fact in facts]
    if not any(fact.kind in ("measured", "live") for _, fact in facts):
        lines.append("- not known: no acceptance was measured here; `dflashctl eval run`, `dflashctl bench`")
    return lines


def _files(snapshot: Snapshot) -> list[str]:
    lines = [f"- {snapshot.host}"]
    lines.append(f"  - {escaped(snapshot.workdir)}: work folder")
    for subject in snapshot.subjects:
        lines.append(f"  - {escaped(subject.state.source)}: {subject.sort} {escaped(subject.name)}")
    lines.append("- not known: other hosts (no inventory yet)")
    return lines


def _section(title: str, lines: list[str]) -> list[str]:
    return ["", f"## {title}", *lines]


def _notes(notes: Notes, kind: NoteKind, snapshot: Snapshot) -> list[str]:
    found = [_note(note, snapshot) for note in notes.of(kind)]
    return found or [f"- not known: nobody wrote one; `dflashctl note {kind} add`"]


def _note(note: Note, snapshot: Snapshot, *, is_done: bool = False) -> str:
    end = f", done {duration(snapshot.at_s - (note.done_at_s or 0))} ago by {note.done_by}" if is_done else ""
    age = duration(snapshot.at_s - note.at_s)
    return f"- {escaped(note.text)} *(by hand: {escaped(note.who)}, {age} ago{end}; note {note.id})*"


def _subject(subject: Subject, snapshot: Snapshot) -> list[str]:
    lines = [_fact(subject.state, snapshot, f"**{subject.sort} {escaped(subject.name)}**: ")]
    return lines + [f"  {_fact(fact, snapshot)}" for fact in subject.facts]


def _fact(fact: Fact, snapshot: Snapshot, before: str = "") -> str:
    name = "" if fact.name == "state" else f"{fact.name}: "
    warning = f" **! {escaped(fact.warning)}**" if fact.warning else ""
    source = escaped(fact.source.removeprefix(snapshot.workdir + "/"))
    return f"- {before}{name}{escaped(fact.text)}{warning} *({fact.kind}, {age_of(fact, snapshot.at_s)}; {source})*"
