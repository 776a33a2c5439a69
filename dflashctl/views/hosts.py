"""Hosts: the inventory as a table."""

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from dflashctl.config.hosts import LOCAL
from dflashctl.config.inventory import Inventory
from dflashctl.views.palette import CAUTION, QUIET


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
