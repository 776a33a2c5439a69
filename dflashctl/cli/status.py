"""dflashctl status: what is known now, from where, and how old it is."""

import time
from enum import StrEnum
from typing import Annotated, Any

import typer

from dflashctl.artifacts import DEFAULT_WORKDIR, Workdir
from dflashctl.cli.options import Json, WorkdirOption, transport_of
from dflashctl.cli.output import Output, plain


class Format(StrEnum):
    TABLE = "table"
    MD = "md"
    JSON = "json"


def status(
    hosts: Annotated[list[str] | None, typer.Argument(metavar="[HOST]...", help="Default: this machine.")] = None,
    format_: Annotated[
        Format, typer.Option("--format", help="md: the document with its seven sections.")
    ] = Format.TABLE,
    workdir: WorkdirOption = DEFAULT_WORKDIR,
    json: Json = False,
) -> None:
    """Runs, measured acceptance, servers and benchmarks; every figure with its source and its age."""
    from dflashctl.stages.status.gather import gather
    from dflashctl.stages.status.notes import FILE_NAME, read_notes
    from dflashctl.views.status import status as status_view
    from dflashctl.views.status_markdown import markdown

    root = Workdir(workdir.expanduser().absolute())
    notes = read_notes(root.path / FILE_NAME)
    now_s = time.time()
    snapshots = [gather(root, transport_of(host), now_s) for host in hosts or ["local"]]
    out = Output(is_json=json or format_ is Format.JSON)
    command = f"dflashctl status --format md --workdir {workdir}"
    for snapshot in snapshots:
        text = markdown(snapshot, notes, command).rstrip() if format_ is Format.MD else None
        out.result(_document(snapshot, notes), status_view(snapshot, notes) if text is None else text)


def _document(snapshot: Any, notes: Any) -> dict[str, Any]:
    """The stable shape for machines: every fact with value, unit, source, age and kind."""

    def fact(one: Any) -> dict[str, Any]:
        age_s, is_stale = one.age_s(snapshot.at_s), one.is_stale(snapshot.at_s)
        return {**plain(one), "age_s": age_s, "is_stale": is_stale}

    return {
        "schema_version": 1,
        "host": snapshot.host,
        "workdir": snapshot.workdir,
        "at_s": snapshot.at_s,
        "subjects": [
            {
                "sort": subject.sort,
                "name": subject.name,
                "state": fact(subject.state),
                "facts": [fact(one) for one in subject.facts],
            }
            for subject in snapshot.subjects
        ],
        "problems": [fact(one) for one in snapshot.problems],
        "notes": plain(notes.notes),
        "bad_note_lines": plain(notes.bad_lines),
    }
