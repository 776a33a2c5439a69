"""The command tree, and the way in. Each group is a module; each command parses, calls, and hands to a view."""

import importlib
import sys
from typing import Any

import typer

from dflashctl.cli.guard import guarded

NOUNS = ("demo", "hosts", "data", "train", "eval", "relay", "deploy", "bench", "kernels", "status", "note", "config")
"""In the order in which --help shows them."""
_MODULES = {"eval": "evaluate"}
_SINGLE = ("demo", "status")
"""Commands rather than groups."""


def make_app(nouns: tuple[str, ...] = NOUNS) -> typer.Typer:
    """The commands below these nouns. Only their modules are imported: that is most of what a short command costs."""
    app = typer.Typer(
        name="dflashctl",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help="Train, evaluate, relay and serve your own DFlash speculative-decoding drafter.",
    )
    app.callback()(_all)
    for noun in nouns:
        module = importlib.import_module(f"dflashctl.cli.{_MODULES.get(noun, noun)}")
        if noun in _SINGLE:
            app.command(noun)(getattr(module, noun))
        else:
            app.add_typer(module.app, name=noun)
    return app


def _all(
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error; goes anywhere."),
) -> None:
    """Only here so that --help shows it: `main` takes it off the arguments."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    is_debug = "--debug" in given
    rest = [argument for argument in given if argument != "--debug"]
    nouns = (rest[0],) if rest and rest[0] in NOUNS else NOUNS
    return guarded(lambda: run(make_app(nouns), rest), is_debug=is_debug, is_json="--json" in rest)


def run(app: typer.Typer, arguments: list[str]) -> Any:
    """What the command returns, or the exit code that --help and its like ask for.

    Not by calling the app, which makes an exit code of Ctrl-C before anybody can say what it left.
    """
    command = typer.main.get_command(app)
    try:
        with command.make_context("dflashctl", list(arguments)) as context:
            return command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
