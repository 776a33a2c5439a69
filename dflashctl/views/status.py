"""The status on a terminal: subjects, their facts, and of each fact its source, its age and what sort it is."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from dflashctl.stages.status.fact import Fact, Snapshot, Sort, nothing_yet
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
SORTS: tuple[tuple[Sort, str], ...] = (
    ("run", "runs"),
    ("server", "servers"),
    ("benchmark", "benchmarks"),
    ("dataset", "datasets"),
)
WIDE = 100
"""Columns from which source and age stand beside a fact; else they stand under it."""


def status(snapshot: Snapshot, notes: Notes) -> RenderableType:
    head = f"{snapshot.host}, {snapshot.workdir}, {moment(snapshot.at_s)}"
    parts: list[RenderableType] = [Text(one_line(head), style="bold")]
    for sort, title in SORTS:
        parts.append(Rule(Text(title), align="left", style=ACCENT))
        subjects = snapshot.of(sort)
        if not subjects:
            parts.append(_Facts((nothing_yet(sort),), snapshot))
        for subject in subjects:
            parts.append(Text(one_line(subject.name), style="bold"))
            parts.append(_Facts((subject.state, *subject.facts), snapshot))
    if snapshot.problems:
        parts += [Rule(Text("not readable"), align="left", style=BAD), _Facts(snapshot.problems, snapshot)]
    parts += [Rule(Text("hand-written"), align="left", style=ACCENT), note_table(notes, snapshot.at_s)]
    return Group(*parts)


def note_table(notes: Notes, now_s: float, *, with_done: bool = False) -> RenderableType:
    lines: list[RenderableType] = [Text(f"! {problem}", style=BAD) for problem in problems_of(notes)]
    shown = [note for kind in KINDS for note in notes.of(kind, with_done=with_done)]
    if not shown:
        return Group(*lines, Text('nothing; dflashctl note next add "..."', style=QUIET))
    table = Table(box=None, header_style=QUIET, padding=(0, 2))
    for column in ("id", "what", "text", "by", "written"):
        table.add_column(column, overflow="fold", no_wrap=column == "id")
    for note in shown:
        end = f", done {ago(now_s - note.done_at_s)} by {note.done_by}" if note.done_at_s is not None else ""
        text = Text(one_line(note.text), style="italic")
        table.add_row(note.id, note.kind, text, one_line(note.who), one_line(f"{ago(now_s - note.at_s)}{end}"))
    return Group(*lines, table)


def problems_of(notes: Notes) -> list[str]:
    """What of the notes could not be read."""
    told = [f"notes.jsonl line {number} is no entry and was left out" for number in notes.bad_lines]
    return [one_line(notes.problem), *told] if notes.problem else told


def age_of(fact: Fact, now_s: float) -> str:
    """Words, and a mark where it is too old to rely on."""
    age_s = fact.age_s(now_s)
    if age_s is None:
        return "-"
    return ago(age_s) + (", STALE" if fact.is_stale(now_s) else "")


def ago(age_s: float) -> str:
    """A clock that was set back in between makes no negative ages."""
    return f"{duration(max(0.0, age_s))} ago"


def moment(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_s))


def one_line(text: str) -> str:
    """Names of files and words of jobs may hold anything; what moves a terminal's cursor becomes a question mark."""
    return "".join(character if character.isprintable() else "?" for character in " ".join(text.split()))


def near(source: str, snapshot: Snapshot) -> str:
    """The source with paths in the work folder as seen from there."""
    return one_line(source.replace(f"{snapshot.workdir}/", ""))


@dataclass(frozen=True)
class _Facts:
    """Facts as a table that fits: beside each its kind, age and source, or under it on a narrow terminal."""

    facts: Sequence[Fact]
    snapshot: Snapshot

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        is_wide = options.max_width >= WIDE
        table = Table.grid(padding=(0, 2))
        table.add_column(style=QUIET, justify="right", min_width=15 if is_wide else 0)
        table.add_column(overflow="fold", ratio=3)
        if is_wide:
            table.add_column(no_wrap=True)
            table.add_column(justify="right", no_wrap=True)
            table.add_column(style=QUIET, overflow="fold", ratio=2)
        for fact in self.facts:
            self._add(table, fact, is_wide)
        yield table

    def _add(self, table: Table, fact: Fact, is_wide: bool) -> None:
        is_stale = fact.is_stale(self.snapshot.at_s)
        text = Text(one_line(fact.text), style=CAUTION if is_stale else KIND_STYLE[fact.kind])
        if fact.warning:
            text.append(f"\n! {one_line(fact.warning)}", style=BAD)
        kind = Text(fact.kind, style=KIND_STYLE[fact.kind])
        age = Text(age_of(fact, self.snapshot.at_s), style=CAUTION if is_stale else QUIET)
        source = Text(near(fact.source, self.snapshot), style=QUIET)
        if is_wide:
            table.add_row(fact.name, text, kind, age, source)
        else:
            table.add_row(fact.name, Text("\n").join((text, Text(", ").join((kind, age, source)))))
