"""dflashctl config: what a run.yaml or a hosts.yaml comes to."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflashctl.cli.options import Json, Set, overrides_of
from dflashctl.cli.output import Output

if TYPE_CHECKING:
    from dflashctl.config.schema import Resolved

app = typer.Typer(no_args_is_help=True, help="Check a run.yaml or hosts.yaml; show its values with the origin of each.")

File = Annotated[Path, typer.Argument(metavar="FILE", help="A run.yaml, or a hosts.yaml: its sections tell.")]


@app.command()
def check(file: File, set_: Set = None, json: Json = False) -> None:
    """Say whether every key is known and every value is valid."""
    values = _values(file, set_)
    sections = sorted({value.section for value in values})
    Output(is_json=json).result(
        {"file": str(file), "is_valid": True, "sections": sections},
        f"{file} is valid: {', '.join(sections) or 'no section'}",
    )


@app.command()
def show(file: File, set_: Set = None, json: Json = False) -> None:
    """Print every value as it will be used, and where it comes from: default, file and line, or --set."""
    from dflashctl.views.tables import resolved_values

    values = _values(file, set_)
    Output(is_json=json).result(values, resolved_values(values))


def _values(file: Path, sets: list[str] | None) -> "tuple[Resolved, ...]":
    from dflashctl.config.inventory import is_hosts_file, resolved_hosts
    from dflashctl.config.run import load_sections

    return (resolved_hosts if is_hosts_file(file) else load_sections)(file, overrides_of(sets))
