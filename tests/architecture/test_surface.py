"""The command tree is a contract: a change to it shows up here. DFLASHCTL_UPDATE_GOLDEN=1 writes it anew."""

import os
from pathlib import Path

from typer.main import get_command

from dflashctl.cli.app import make_app

GOLDEN = Path(__file__).parent / "golden" / "surface.txt"


def lines_of(command, path):
    options = []
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            options.append(str(parameter.metavar or parameter.name))
        elif "--help" not in parameter.opts:
            options.append("/".join(parameter.opts))
    yield " ".join([*path, *options])
    for name, below in getattr(command, "commands", {}).items():
        yield from lines_of(below, [*path, name])


def test_command_tree_is_the_one_agreed_on():
    tree = "\n".join(lines_of(get_command(make_app()), ["dflashctl"])) + "\n"
    if os.environ.get("DFLASHCTL_UPDATE_GOLDEN"):
        GOLDEN.write_text(tree)
    assert tree == GOLDEN.read_text()
