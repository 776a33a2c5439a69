"""dflashctl status: what is known now, from where, and how old it is."""

import shlex
import time
from enum import StrEnum
from typing import Annotated

import typer

from dflashctl.artifacts import Workdir
from dflashctl.cli.options import Json, WorkdirOption, transport_of
from dflashctl.cli.output import Output
from dflashctl.defaults import DEFAULT_WORKDIR


class Format(StrEnum):
    TABLE = "table"
    MD = "md"
    JSON = "json"


def status(
    hosts: Annotated[list[str] | None, typer.Argument(metavar="HOST", help="Default: this machine.")] = None,
    format_: Annotated[
        Format, typer.Option("--format", help="md: the document with its seven sections.")
    ] = Format.TABLE,
    workdir: WorkdirOption = DEFAULT_WORKDIR,
    json: Json = False,
) -> None:
    """Runs, measured acceptance, servers and benchmarks; every figure with its source and its age."""
    from dflashctl.stages.status.gather import gather
    from dflashctl.stages.status.notes import FILE_NAME, notes_if_readable
    from dflashctl.views.status import status as table
    from dflashctl.views.status_json import document
    from dflashctl.views.status_markdown import markdown

    root = Workdir(workdir.expanduser().absolute())
    transports = [transport_of(host) for host in dict.fromkeys(hosts or ["local"])]
    notes = notes_if_readable(root.path / FILE_NAME)
    now_s = time.time()
    snapshots = [gather(root, transport, now_s) for transport in transports]
    shown = Format.JSON if json else format_
    command = shlex.join(["dflashctl", "status", *(hosts or []), "--format", shown, "--workdir", str(workdir)])
    out = Output(is_json=shown is Format.JSON)
    match shown:
        case Format.JSON:
            out.result(document(snapshots, notes, command, now_s))
        case Format.MD:
            out.result(None, markdown(snapshots, notes, command).rstrip())
        case Format.TABLE:
            out.result(None, *(table(snapshot, notes) for snapshot in snapshots))
