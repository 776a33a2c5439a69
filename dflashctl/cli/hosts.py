"""dflashctl hosts: which there are, and whether each is fit for its work."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflashctl.cli.options import HostsOption, Json, inventory_of
from dflashctl.cli.output import Output
from dflashctl.defaults import DEFAULT_WORKDIR, LOCAL
from dflashctl.errors import DflashctlError, HostUnreachable

if TYPE_CHECKING:
    from dflashctl.config.inventory import Inventory
    from dflashctl.stages.hosts.check import Examination

app = typer.Typer(no_args_is_help=True, help="The hosts of hosts.yaml, and a doctor for them.")

CHECK_S = 330.0
"""More than all limits of one visit together: a question that hangs is told as that, not as an unreachable host."""


@app.command("list")
def list_(hosts: HostsOption = None, json: Json = False) -> None:
    """The hosts, how each is reached and what it is for. Nobody is asked."""
    from dflashctl.views.hosts import host_rows, inventory_table

    inventory = _inventory(hosts)
    rows = host_rows(inventory)
    out = Output(is_json=json)
    out.result({"file": inventory.file, "hosts": rows}, inventory_table(rows))
    if inventory.file is None:
        out.say("there is no hosts.yaml here, so this machine is the only host; docs/hosts.md says how to write one")


@app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(metavar="HOST", help="Default: all of them.")] = None,
    hosts: HostsOption = None,
    json: Json = False,
) -> None:
    """Examine hosts: one screen each, every red line with its cure. Nothing is changed on them.

    Exit code 3 if a host could not be reached, 4 if something is red.
    """
    from dflashctl.stages.hosts.twins import find_twins
    from dflashctl.views.hosts import examination, no_examination, same_machines

    inventory = _inventory(hosts)
    asked = tuple(dict.fromkeys(names or inventory.names))
    for name in asked:
        inventory.lookup(name)
    out = Output(is_json=json)
    out.say(f"asking {', '.join(asked)}", style="dim")
    found: dict[str, Examination | DflashctlError] = {}
    for name, answer in _examine_all(inventory, asked):
        found[name] = answer
        if not json:
            shown = no_examination(name, answer) if isinstance(answer, DflashctlError) else examination(answer)
            out.result(None, shown, "")
    protected = {name: inventory.lookup(name).protected for name in asked}
    answers = (found[name] for name in asked)
    twins = find_twins((answer for answer in answers if not isinstance(answer, DflashctlError)), protected)
    if json:
        out.result({"hosts": [_document(name, found[name]) for name in asked], "same_machine": twins})
    elif twins:
        out.result(None, same_machines(twins))
    if any(isinstance(answer, HostUnreachable) for answer in found.values()):
        raise typer.Exit(HostUnreachable.exit_code)
    if any(isinstance(answer, DflashctlError) or answer.is_bad for answer in found.values()):
        raise typer.Exit(4)


def _examine_all(
    inventory: "Inventory", names: tuple[str, ...]
) -> Iterator[tuple[str, "Examination | DflashctlError"]]:
    from dflashctl.config.ssh import ssh_settings
    from dflashctl.stages.hosts.check import examine, way_in_words
    from dflashctl.transport.fan_out import fan_out
    from dflashctl.transport.pool import Pool
    from dflashctl.transport.shell import Shell
    from dflashctl.transport.ssh_config import route_to
    from dflashctl.transport.ssh_shell import open_shell

    settings, pool = ssh_settings(os.environ), Pool()

    def question(shell: Shell) -> "Examination":
        spec = inventory.lookup(shell.name)
        is_here = shell.name == LOCAL
        way = "this machine" if is_here else way_in_words(route_to(shell.name, inventory.content, settings))
        unset = tuple(name for name in spec.secrets if not os.environ.get(name))
        return examine(shell, spec, way=way, unset_secrets=unset)

    try:
        yield from fan_out([open_shell(name, inventory.content, settings, pool) for name in names], question, CHECK_S)
    finally:
        pool.close()


def _inventory(hosts: Path | None) -> "Inventory":
    """With this machine as commands without --host take it."""
    return inventory_of(hosts).with_local(str(DEFAULT_WORKDIR.absolute()), sys.executable)


def _document(name: str, answer: "Examination | DflashctlError") -> dict[str, object]:
    if isinstance(answer, DflashctlError):
        error = {"message": answer.message, "hint": answer.hint, "exit_code": answer.exit_code}
        return {"host": name, "is_reachable": not isinstance(answer, HostUnreachable), "error": error}
    return {
        "host": name,
        "is_reachable": True,
        "connect_s": answer.connect_s,
        "rtt_s": answer.rtt_s,
        "findings": answer.findings,
        "gpus": answer.gpus,
    }
