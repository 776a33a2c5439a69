"""The one printer: results on stdout, progress and remarks on stderr, or one JSON document instead."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from rich.console import Console, RenderableType

PIPE_WIDTH = 120
"""Columns where there is no terminal to fit."""


class Output:
    def __init__(self, *, is_json: bool = False) -> None:
        self.is_json = is_json
        self.results = _console(is_stderr=False)
        self.progress = _console(is_stderr=True, is_quiet=is_json)

    def result(self, data: Any, *renderables: RenderableType) -> None:
        """What the command was asked for: `data` with --json, else the renderables."""
        if self.is_json:
            print(json.dumps(plain(data), indent=2))
            return
        for renderable in renderables:
            self.results.print(renderable, soft_wrap=isinstance(renderable, str), markup=False)

    def say(self, text: str, style: str = "") -> None:
        """A remark on the way; markup in `text` is not read."""
        self.progress.print(text, style=style, markup=False, soft_wrap=True)

    @property
    def is_live(self) -> bool:
        return self.progress.is_terminal and not self.is_json


def plain(value: Any) -> Any:
    """Specs, dataclasses and paths as what JSON knows."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value


def _console(*, is_stderr: bool, is_quiet: bool = False) -> Console:
    console = Console(stderr=is_stderr, quiet=is_quiet, highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, PIPE_WIDTH)
    return console


def print_error(document: dict[str, Any]) -> None:
    """An error for machines, on stderr."""
    print(json.dumps({"error": document}, indent=2), file=sys.stderr)
