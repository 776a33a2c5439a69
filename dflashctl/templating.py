"""Filling in the templates of the top-level folder templates/; a name that is not given is an error."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

_PACKAGE = Path(__file__).parent
_FOLDERS = [str(_PACKAGE / "templates"), str(_PACKAGE.parent / "templates")]
"""In an installed wheel, and in a clone."""


def render(name: str, **values: Any) -> str:
    """The template `name` (a path below templates/) filled in; HTML is escaped where the name ends in .html.j2."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDERS),
        undefined=StrictUndefined,
        autoescape=select_autoescape(enabled_extensions=("html.j2",)),
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name).render(**values)
