"""The command tree, and the way in. Each group is a module; each command parses, calls, and hands to a view."""

import sys

import typer

from dflashctl.cli import bench, config, data, deploy, evaluate, hosts, note, train
from dflashctl.cli.demo import demo
from dflashctl.cli.guard import guarded
from dflashctl.cli.status import status

app = typer.Typer(
    name="dflashctl",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train, evaluate, relay and serve your own DFlash speculative-decoding drafter.",
)
app.command("demo")(demo)
app.add_typer(hosts.app, name="hosts")
app.add_typer(data.app, name="data")
app.add_typer(train.app, name="train")
app.add_typer(evaluate.app, name="eval")
app.add_typer(deploy.app, name="deploy")
app.add_typer(bench.app, name="bench")
app.command("status")(status)
app.add_typer(note.app, name="note")
app.add_typer(config.app, name="config")


@app.callback()
def _all(
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error; goes anywhere."),
) -> None:
    """Only here so that --help shows it: `main` takes it off the arguments."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    is_debug = "--debug" in given
    rest = [argument for argument in given if argument != "--debug"]
    return guarded(
        lambda: app(rest, prog_name="dflashctl", standalone_mode=False),
        is_debug=is_debug,
        is_json="--json" in rest,
    )
