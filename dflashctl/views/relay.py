"""A relay while it runs, and what became of it."""

import time
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dflashctl.operations.relay.history import Record
from dflashctl.operations.relay.progress import Snapshot
from dflashctl.operations.relay.transfer import Moved
from dflashctl.views.palette import ACCENT, BAD, CAUTION, GOOD, QUIET, binary, duration

SILENT_S = 5.0
"""From then on an average says nothing about what goes on."""
PHASES = {
    "looking": "looking at both ends",
    "hashing": "reading it at the source, for its sha256",
    "moving": "moving",
    "verifying": "verifying on the target's disk",
    "publishing": "syncing and publishing",
    "waiting": "waiting to try again",
}


def board(what: str, source: str, target: str, seen: Snapshot) -> RenderableType:
    """Four lines that are redrawn in place, however narrow the terminal is."""
    bar = Table.grid()
    bar.add_row(ProgressBar(total=max(1, seen.total_bytes), completed=seen.done_bytes, width=40))
    return Group(
        _one_line(what, ACCENT),
        bar,
        _one_line(line(source, target, seen)),
        _one_line(legs(source, target, seen), QUIET),
    )


def _one_line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def line(source: str, target: str, seen: Snapshot) -> str:
    if seen.phase in ("looking", "hashing") or not seen.total_bytes:
        return PHASES[seen.phase]
    text = f"{PHASES[seen.phase]}: {binary(seen.done_bytes)} of {binary(seen.total_bytes)}"
    if seen.phase == "moving" and seen.idle_s >= SILENT_S:
        text += f", nothing has moved for {duration(seen.idle_s)}"
    elif seen.phase != "waiting":
        text += f", {binary(seen.rate_bytes_per_s)}/s"
        if seen.phase == "moving" and seen.left_s is not None:
            text += f", {duration(seen.left_s)} left"
    moved = seen.done_bytes - seen.kept_bytes
    if moved - seen.sent_bytes > moved // 50:
        text += f", {binary(seen.sent_bytes)} sent for {binary(moved)}"
    return text


def legs(source: str, target: str, seen: Snapshot) -> str:
    """How fast each leg could go, and which one keeps the other waiting."""
    if not seen.sent_bytes or seen.phase == "waiting":
        return ""
    one, other = (binary(seen.leg_bytes_per_s(leg)) for leg in ("source", "target"))
    text = f"{source} -> here {one}/s, here -> {target} {other}/s"
    if seen.num_lanes > 1:
        text += f", {seen.num_lanes} connections"
    slower = {"source": source, "target": target}.get(seen.slower_leg)
    return text if slower is None else f"{text}; {slower} is the slower leg"


HOWS = (
    ("same", "copied from what was there"),
    ("base", "as difference"),
    ("planes", "encoded"),
    ("zeros", "holes"),
    ("raw", "as it is"),
)
"""How bytes came, in the order in which it is told."""


def plain(name: str) -> str:
    """A file's name from another machine, without what a terminal would act on."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)


READ_BACK = "every sha256 read back there is right"


def moved_text(what: str, target: str, moved: Moved, proof: str = READ_BACK) -> str:
    """The last line: sent X for Y, how, and what proves that it is there."""
    new = moved.total_bytes - moved.kept_bytes
    text = f"{what} is on {target}: {moved.dest}; sent {binary(moved.sent_bytes)} for {binary(moved.total_bytes)}"
    parts = [f"{binary(moved.hows[how])} {words}" for how, words in HOWS if moved.hows.get(how)]
    if set(moved.hows) - {"raw"}:
        text += f": {', '.join(parts)}"
    if moved.kept_bytes:
        text += f" ({binary(moved.kept_bytes)} were there from an earlier try)"
    text += f" in {duration(moved.elapsed_s)}" if moved.elapsed_s >= 1 else f" in {moved.elapsed_s:.2f} s"
    if moved.elapsed_s > 0 and new:
        text += f" ({binary(new / moved.elapsed_s)}/s)"
    return f"{text}; {proof}"


def relay_tables(begun: tuple[Record, ...], host: str | None, there: dict[str, Any]) -> list[RenderableType]:
    """What was begun here, and what the destination tells."""
    table = Table("name", "when", "outcome", "from", "to", "bytes", box=None, title="begun here", title_justify="left")
    for record in begun[-20:]:
        when = time.strftime("%m-%d %H:%M", time.localtime(record.at_s))
        style = {"done": GOOD, "failed": BAD}.get(record.outcome, CAUTION)
        size = binary(record.total_bytes) if record.total_bytes else ""
        table.add_row(record.name, when, Text(record.outcome, style=style), record.source, record.dest, size)
    tables: list[RenderableType] = [table] if begun else ["no relay was begun on this machine"]
    if host is None:
        return tables
    left = Table("place", "there", "of", box=None, title=f"unfinished on {host}", title_justify="left")
    for told in there["unfinished"]:
        left.add_row(told.get("dest", told["part"]), binary(told["there_bytes"]), binary(told.get("total_bytes", 0)))
    came = Table("place", "from", "when", box=None, title=f"received by {host}", title_justify="left")
    for told in there["received"][-20:]:
        came.add_row(
            told["dest"], str(told.get("from", "")), time.strftime("%m-%d %H:%M", time.localtime(told["at_s"]))
        )
    tables += [left] if there["unfinished"] else []
    tables += [came] if there["received"] else []
    return tables
