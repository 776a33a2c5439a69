"""Hosts: the inventory as a table, and what the doctor found on each."""

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dflashctl.config.inventory import Inventory
from dflashctl.defaults import LOCAL
from dflashctl.errors import DflashctlError, HostUnreachable
from dflashctl.facts.finding import Finding, Level
from dflashctl.stages.hosts.check import Examination
from dflashctl.stages.hosts.twins import Twins
from dflashctl.views.palette import ACCENT, BAD, CAUTION, GOOD, QUIET

MARKS: dict[Level, tuple[str, str]] = {
    "ok": ("ok", GOOD),
    "note": ("note", CAUTION),
    "bad": ("BAD", BAD),
    "unknown": ("?", CAUTION),
}


@dataclass(frozen=True)
class HostRow:
    """A host as the inventory describes it."""

    name: str
    reached: str
    roles: tuple[str, ...]
    workdir: str
    env: str | None
    python: str
    is_protected: bool
    cannot_reach: tuple[str, ...]


def host_rows(inventory: Inventory) -> tuple[HostRow, ...]:
    return tuple(
        HostRow(
            name=name,
            reached=reached_by(name, inventory),
            roles=spec.roles,
            workdir=spec.workdir,
            env=spec.env,
            python=spec.python,
            is_protected=spec.protected,
            cannot_reach=inventory.cannot_reach(name),
        )
        for name, spec in inventory.content.hosts.items()
    )


def reached_by(name: str, inventory: Inventory) -> str:
    """In words: user@address:port, or the alias that ssh_config knows; and the way there."""
    if name == LOCAL:
        return "this machine"
    spec = inventory.lookup(name)
    jumps = [hop if hop in inventory.names else f"{hop} of ssh_config" for hop in inventory.jumps(name)]
    user = f"{spec.user}@" if spec.user else ""
    port = f":{spec.port}" if spec.port else ""
    if spec.address is None:
        target = f"{user}{spec.ssh or name}{port} of ssh_config"
    elif ":" in spec.address:
        target = f"{user}[{spec.address}]{port}"
    else:
        target = f"{user}{spec.address}{port}"
    return f"{target} via {', '.join(jumps)}" if jumps else target


def inventory_table(rows: Iterable[HostRow]) -> RenderableType:
    table = Table(box=None, header_style=QUIET, padding=(0, 1))
    for column in ("host", "reached", "roles", "work folder", "env", "protected", "cannot reach"):
        table.add_column(column, overflow="fold", no_wrap=column == "host")
    for row in rows:
        table.add_row(
            row.name,
            Text(row.reached),
            ", ".join(row.roles) or "-",
            Text(row.workdir),
            row.env or "as it is",
            Text("yes", style=CAUTION) if row.is_protected else "-",
            ", ".join(row.cannot_reach) or "-",
        )
    return table


def examination(found: Examination) -> RenderableType:
    """One screen: what was looked at, and under each line that needs one its cure."""
    counts = [
        (level, sum(finding.level == level for finding in found.findings)) for level in ("bad", "note", "unknown")
    ]
    words = {"bad": "bad", "note": "to know", "unknown": "that could not be asked"}
    told = ", ".join(f"{count} {words[level]}" for level, count in counts if count)
    head = Text(found.host, style=f"bold {ACCENT}").append(f"  {told or 'in order'}", style=_worst(found.findings))
    return Group(head, _finding_table(found.findings))


def no_examination(host: str, error: DflashctlError) -> RenderableType:
    """A host that did not answer, or could not be asked."""
    what = "unreachable" if isinstance(error, HostUnreachable) else "could not be examined"
    head = Text(host, style=f"bold {ACCENT}").append(f"  {what}", style=BAD)
    return Group(head, _finding_table((Finding("link", "bad", error.message, error.hint or "see docs/hosts.md"),)))


def same_machines(twins: Iterable[Twins]) -> RenderableType:
    return _finding_table(twin.finding for twin in twins)


def _finding_table(findings: Iterable[Finding]) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    table.add_column(min_width=4)
    table.add_column(style=QUIET, no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        mark, style = MARKS[finding.level]
        text = Text(_printable(finding.text), style="" if finding.level == "ok" else style)
        if finding.cure:
            text.append(f"\n-> {_printable(finding.cure)}", style="default")
        table.add_row(Text(mark, style=style), _printable(finding.topic), text)
    return table


def _worst(findings: Iterable[Finding]) -> str:
    levels = {finding.level for finding in findings}
    return next((MARKS[level][1] for level in ("bad", "note", "unknown") if level in levels), GOOD)


def _printable(text: str) -> str:
    """Much of it are words of the host; what moves a terminal's cursor becomes a question mark."""
    return "".join(character if character.isprintable() else "?" for character in text)
