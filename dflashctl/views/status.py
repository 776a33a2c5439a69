"""The status on a terminal: subjects, their facts, and of each fact its source, its age and what sort it is."""

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from dflashctl.stages.status.fact import Fact, Snapshot, Subject
from dflashctl.stages.status.gather import nothing_yet
from dflashctl.stages.status.notes import KINDS, Notes
from dflashctl.views.palette import ACCENT, BAD, CAUTION, GOOD, QUIET, duration

KIND_STYLE = {
    "measured": GOOD,
    "live": GOOD,
    "reported": "",
    "estimated": "italic yellow",
    "hand-written": "italic",
    "unknown": QUIET,
}
SORTS = (("run", "runs"), ("server", "servers"), ("benchmark", "benchmarks"), ("dataset", "datasets"))


def status(snapshot: Snapshot, notes: Notes) -> RenderableType:
    parts: list[RenderableType] = []
    for sort, title in SORTS:
        parts.append(Rule(Text(title), align="left", style=ACCENT))
        subjects = snapshot.of(sort)
        if not subjects:
            parts.append(_facts([nothing_yet(sort)], snapshot))
        for subject in subjects:
            parts.append(_subject(subject, snapshot))
    if snapshot.problems:
        parts.append(Rule(Text("not readable"), align="left", style=BAD))
        parts.append(_facts(list(snapshot.problems), snapshot))
    parts += [Rule(Text("written by hand"), align="left", style=ACCENT), note_table(notes, snapshot.at_s)]
    return Group(*parts)


def note_table(notes: Notes, now_s: float, *, with_done: bool = False) -> RenderableType:
    shown = [note for kind in KINDS for note in notes.of(kind, with_done=with_done)]
    lines: list[RenderableType] = [
        Text(f"notes.jsonl:{number} is no entry and was left out", style=BAD) for number in notes.bad_lines
    ]
    if not shown:
        return Group(*lines, Text('nothing; dflashctl note next add "..."', style=QUIET))
    table = Table(box=None, header_style=QUIET, padding=(0, 2))
    for column in ("id", "what", "text", "by", "age"):
        table.add_column(column, overflow="fold")
    for note in shown:
        end = f", done {duration(now_s - note.done_at_s)} ago by {note.done_by}" if note.done_at_s is not None else ""
        age = f"{duration(now_s - note.at_s)}{end}"
        table.add_row(note.id, note.kind, Text(note.text, style="italic"), note.who, age)
    return Group(*lines, table)


def age_of(fact: Fact, now_s: float) -> str:
    """Words, and a mark where it is too old to rely on."""
    age_s = fact.age_s(now_s)
    if age_s is None:
        return "-"
    return f"{duration(age_s)} ago" + (", STALE" if fact.is_stale(now_s) else "")


def _subject(subject: Subject, snapshot: Snapshot) -> RenderableType:
    return Group(Text(subject.name, style="bold"), _facts([subject.state, *subject.facts], snapshot))


def _facts(facts: list[Fact], snapshot: Snapshot) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style=QUIET, justify="right", min_width=14)
    table.add_column(overflow="fold", ratio=3)
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style=QUIET, overflow="fold", ratio=2)
    for fact in facts:
        is_stale = fact.is_stale(snapshot.at_s)
        text = Text(fact.text, style=CAUTION if is_stale else KIND_STYLE[fact.kind])
        if fact.warning:
            text.append(f"\n! {fact.warning}", style=BAD)
        age = Text(age_of(fact, snapshot.at_s), style=CAUTION if is_stale else QUIET)
        kind = Text(fact.kind, style=KIND_STYLE[fact.kind])
        table.add_row(fact.name, text, kind, age, _near(fact.source, snapshot.workdir))
    return table


def _near(source: str, workdir: str) -> str:
    return source.removeprefix(workdir + "/")
