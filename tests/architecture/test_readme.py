import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from dflashctl.cli.app import make_app

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ("README.md", "docs/architecture.md", "docs/adding.md")
LATER = re.compile(r"\(comes? with|\(later\)|# later")


def commands_in(document: str) -> list[str]:
    """Lines of code blocks that call dflashctl, but for those that say that they come later."""
    text = (ROOT / document).read_text()
    blocks = re.findall(r"```(?:sh|bash|console)?\n(.*?)```", text, flags=re.S)
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("dflashctl ") and not LATER.search(line)]


def targets_in(document: str) -> set[str]:
    return set(re.findall(r"`make ([a-z0-9-]+)`|^make ([a-z0-9-]+)", (ROOT / document).read_text(), flags=re.M))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_shown_exists_with_its_options(document):
    for line in commands_in(document):
        words = shlex.split(line, comments=True)[1:]
        command = get_command(make_app())
        while words and hasattr(command, "commands") and not words[0].startswith("-"):
            assert words[0] in command.commands, f"{document}: {line}"
            command = command.commands[words.pop(0)]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word.split("=")[0] for word in words if word.startswith("-")} <= known | {"--help"}, line


def test_readme_shows_the_everyday_commands():
    assert any(line.startswith("dflashctl train start") for line in commands_in("README.md"))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_make_target_named_exists(document):
    makefile = (ROOT / "Makefile").read_text()
    for pair in targets_in(document):
        target = pair[0] or pair[1]
        assert re.search(rf"^{target}:", makefile, flags=re.M), f"{document}: make {target}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_named_in_a_link_exists(document):
    folder = (ROOT / document).parent
    links = re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", (ROOT / document).read_text())
    missing = [link for link in links if not (folder / link).exists()]
    assert not missing
