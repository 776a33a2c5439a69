"""The status as the document that used to be kept by hand: seven sections, each line with its source and age."""

import re
from collections.abc import Sequence

from dflashctl.stages.status.fact import Fact, Snapshot, Subject
from dflashctl.stages.status.notes import FILE_NAME, Note, NoteKind, Notes
from dflashctl.views.status import age_of, ago, moment, near, one_line, problems_of

SPECIAL = "\\`*_{}[]<>#|~&$"
LINE_START = re.compile(r"^(?:([-+=])|(\d+)([.)])(?=\s|$))")
"""What would open a list, a rule or an underline at the beginning of a line."""
BLOCKED_STATES = ("failed", "ended without a word", "lost to reboot", "elsewhere", "unhealthy", "unreadable")
ENDED_STATES = ("finished", "stopped")


def markdown(snapshots: Sequence[Snapshot], notes: Notes, command: str) -> str:
    """All of it is made anew each time; the lines marked hand-written were written by people."""
    now_s = snapshots[0].at_s
    lines = [
        "# Status",
        "",
        f"Made {moment(now_s)} by `{one_line(command).replace('`', '?')}`, and true then.",
        "Each line says how it is known (measured, live, reported by a job, estimated, hand-written), how old that is",
        "and where it was read. Do not edit this text, it is made anew: `dflashctl note` keeps what people write.",
    ]
    lines += _section("Goal", _notes(notes, "goal", now_s))
    lines += _section("Constraints & Preferences", _notes(notes, "constraint", now_s))
    lines += _progress(snapshots, notes, now_s)
    lines += _section("Key Decisions", _notes(notes, "decision", now_s))
    lines += _section("Next Steps", _notes(notes, "next", now_s))
    lines += _section("Critical Context", [*_context(snapshots), *_notes(notes, "context", now_s)])
    lines += _section("Relevant Files (by machine)", [line for snapshot in snapshots for line in _files(snapshot)])
    lines += ["- not known: other machines; this version looks at this one only"]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """The text with what Markdown would read as marks taken literally, on one line."""
    literal = "".join(f"\\{character}" if character in SPECIAL else character for character in one_line(text))
    return LINE_START.sub(lambda found: f"\\{found[1]}" if found[1] else f"{found[2]}\\{found[3]}", literal)


def _progress(snapshots: Sequence[Snapshot], notes: Notes, now_s: float) -> list[str]:
    done: list[str] = []
    running: list[str] = []
    blocked: list[str] = []
    for snapshot in snapshots:
        for subject in snapshot.subjects:
            {"done": done, "running": running, "blocked": blocked}[_where(subject)].extend(_subject(subject, snapshot))
        blocked += [_fact(problem, snapshot) for problem in snapshot.problems]
    done += [_note(note, now_s) for note in _ended(notes)]
    blocked += [f"- **! {escaped(problem)}**" for problem in problems_of(notes)]
    blocked += [_note(note, now_s) for note in notes.of("blocked")]
    empty = {
        "Done": "- not known: nothing finished here, and no note says so",
        "In Progress": "- not known: nothing runs here as far as this machine can see",
        "Blocked": "- not known: nothing failed here, and no note says so; `dflashctl note blocked add`",
    }
    out = ["", "## Progress"]
    for title, lines in (("Done", done), ("In Progress", running), ("Blocked", blocked)):
        out += ["", f"### {title}", "", *(lines or [empty[title]])]
    return out


def _where(subject: Subject) -> str:
    state = subject.state.value
    if state in BLOCKED_STATES:
        return "blocked"
    return "done" if state in ENDED_STATES or subject.sort in ("benchmark", "dataset") else "running"


def _ended(notes: Notes) -> list[Note]:
    kinds: tuple[NoteKind, ...] = ("goal", "next", "blocked")
    return [note for kind in kinds for note in notes.of(kind, with_done=True) if not note.is_open]


def _context(snapshots: Sequence[Snapshot]) -> list[str]:
    """The figures that decide, and whatever is odd or old."""
    names = ("tau", "best tau", "served tau", "speed-up", "lossless", "live tau")
    lines, num_known = [], 0
    for snapshot in snapshots:
        for subject in snapshot.subjects:
            for fact in (subject.state, *subject.facts):
                is_known = fact.name in names and fact.kind in ("measured", "live")
                num_known += is_known
                if is_known or fact.warning or fact.is_stale(snapshot.at_s):
                    lines.append(_fact(fact, snapshot, f"{subject.sort} {escaped(subject.name)}: "))
    if not num_known:
        lines.append("- not known: no acceptance was measured here; `dflashctl eval run`, `dflashctl bench`")
    return lines


def _files(snapshot: Snapshot) -> list[str]:
    lines = [f"- {escaped(snapshot.host)}", f"  - work folder: {escaped(snapshot.workdir)}"]
    lines.append(f"  - notes: {escaped(f'{snapshot.workdir}/{FILE_NAME}')}")
    for subject in snapshot.subjects:
        sources = dict.fromkeys(path for fact in (subject.state, *subject.facts) for path in _paths(fact))
        lines += [f"  - {subject.sort} {escaped(subject.name)}: {escaped(path)}" for path in sources]
    return lines


def _paths(fact: Fact) -> list[str]:
    """Files among its sources; `unknown` names a command."""
    return [] if fact.kind == "unknown" else [path for path in fact.source.split(", ") if path.startswith("/")]


def _section(title: str, lines: list[str]) -> list[str]:
    return ["", f"## {title}", "", *lines]


def _notes(notes: Notes, kind: NoteKind, now_s: float) -> list[str]:
    found = [_note(note, now_s) for note in notes.of(kind)]
    return found or [f"- not known: nobody wrote one; `dflashctl note {kind} add`"]


def _note(note: Note, now_s: float) -> str:
    end = f", done {ago(now_s - note.done_at_s)} by {note.done_by}" if note.done_at_s is not None else ""
    told = escaped(f"(hand-written by {note.who}, {ago(now_s - note.at_s)}{end}; {FILE_NAME}, {note.id})")
    return f"- {escaped(note.text)} *{told}*"


def _subject(subject: Subject, snapshot: Snapshot) -> list[str]:
    lines = [_fact(subject.state, snapshot, f"**{subject.sort} {escaped(subject.name)}**: ")]
    return lines + [f"  {_fact(fact, snapshot)}" for fact in subject.facts]


def _fact(fact: Fact, snapshot: Snapshot, before: str = "") -> str:
    name = "" if fact.name == "state" else f"{escaped(fact.name)}: "
    warning = f" **! {escaped(fact.warning)}**" if fact.warning else ""
    age, source = age_of(fact, snapshot.at_s), escaped(near(fact.source, snapshot))
    if fact.kind == "unknown":
        return f"- {before}{name}{escaped(fact.text)}{warning} *({source})*"
    return f"- {before}{name}{escaped(fact.text)}{warning} *({fact.kind}, {age}; {source})*"
