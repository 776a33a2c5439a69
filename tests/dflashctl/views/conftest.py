import io

import pytest
from rich.console import Console


@pytest.fixture
def text_of():
    """What a renderable reads like; with colours if asked."""

    def render(renderable, *, width: int = 120, has_colour: bool = False) -> str:
        console = Console(
            file=io.StringIO(), width=width, force_terminal=has_colour, color_system="standard" if has_colour else None
        )
        console.print(renderable)
        return console.file.getvalue()

    return render
