"""dflashctl note: the hand-kept half of the status."""

import time
from typing import Annotated

import typer

from dflashctl.artifacts import Workdir
from dflashctl.cli.options import DryRun, Json, WorkdirOption, author
from dflashctl.cli.output import Output
from dflashctl.defaults import DEFAULT_WORKDIR
from dflashctl.stages.status.notes import FILE_NAME, KINDS, NoteKind, Notes, add, finish, read_notes

ENDS = {
    "goal": "reached or given up",
    "constraint": "lifted",
    "decision": "taken back",
    "blocked": "no longer blocked",
    "next": "done",
    "context": "no longer true",
}
app = typer.Typer(no_args_is_help=True, help="Goals, decisions and next steps, shown by `status` as written by hand.")


def _group(kind: NoteKind) -> typer.Typer:
    group = typer.Typer(no_args_is_help=True, help=f"{kind}: `done` says that it is {ENDS[kind]}.")

    def add_(
        text: Annotated[str, typer.Argument(metavar="TEXT", help="One line; line breaks become spaces.")],
        workdir: WorkdirOption = DEFAULT_WORKDIR,
        dry_run: DryRun = False,
        json: Json = False,
    ) -> None:
        """Write one down."""
        path = Workdir(workdir.expanduser().absolute()).path / FILE_NAME
        if dry_run:
            Output(is_json=json).result({"writes": path, "kind": kind, "text": text}, f"would add a {kind} to {path}")
            return
        note = add(path, kind, text, who=author(), now_s=time.time())
        Output(is_json=json).result(note, f"{kind} {note.id}: {note.text}")

    def done(
        note_id: Annotated[str, typer.Argument(metavar="ID", help="From `list`.")],
        workdir: WorkdirOption = DEFAULT_WORKDIR,
        dry_run: DryRun = False,
        json: Json = False,
    ) -> None:
        """End one; it stays in the file with when and by whom."""
        path = Workdir(workdir.expanduser().absolute()).path / FILE_NAME
        if dry_run:
            Output(is_json=json).result({"writes": path, "id": note_id}, f"would end {kind} {note_id} in {path}")
            return
        note = finish(path, kind, note_id, who=author(), now_s=time.time())
        Output(is_json=json).result(note, f"{kind} {note.id} is {ENDS[kind]}: {note.text}")

    def list_(
        all_: Annotated[bool, typer.Option("--all", help="Those that are done too.")] = False,
        workdir: WorkdirOption = DEFAULT_WORKDIR,
        json: Json = False,
    ) -> None:
        """Those that stand."""
        from dflashctl.views.status import note_table

        found = read_notes(Workdir(workdir.expanduser().absolute()).path / FILE_NAME)
        notes = Notes(found.of(kind, with_done=all_), found.bad_lines)
        Output(is_json=json).result(notes, note_table(notes, time.time(), with_done=all_))

    group.command("add")(add_)
    group.command("done")(done)
    group.command("list")(list_)
    return group


for _kind in KINDS:
    app.add_typer(_group(_kind), name=_kind)
