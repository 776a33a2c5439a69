"""The command tree, and the way in. Each group is a module; each command parses, calls, and hands to a view."""

import importlib
import sys

import typer

from dflashctl.cli.guard import guarded

NOUNS = ("demo", "hosts", "data", "train", "eval", "deploy", "bench", "status", "note", "config")
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
    return guarded(
        lambda: make_app(nouns)(rest, prog_name="dflashctl", standalone_mode=False),
        is_debug=is_debug,
        is_json="--json" in rest,
    )
