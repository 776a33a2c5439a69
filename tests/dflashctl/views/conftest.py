import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from dflashctl.stages.bench.report import BenchReport


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


@pytest.fixture
def bench_report():
    """A benchmark's report with the given changes; `drafter` renames the drafter."""
    recorded = json.loads((Path(__file__).parents[2] / "browser" / "bench.json").read_text())

    def make(drafter=None, **changes) -> BenchReport:
        document = recorded | changes
        if drafter is not None:
            servers = document["servers"]
            document["servers"] = servers | {"speculative": servers["speculative"] | {"drafter_label": drafter}}
        return BenchReport.model_validate(document)

    return make
