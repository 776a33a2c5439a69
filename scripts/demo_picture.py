"""Draws docs/demo.svg from a finished demo: `python scripts/demo_picture.py [dflashctl-demo] [docs/demo.svg]`.

Everything in the picture is read from what that demo wrote; nothing is made up for it.
"""

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import yaml
from rich.console import Console

from dflashctl.artifacts import CheckpointRef
from dflashctl.stages.bench.summary import read_report
from dflashctl.stages.data.apply import read_inspection
from dflashctl.stages.demo.apply import read_demo
from dflashctl.stages.demo.plan import DemoSettings, plan_demo
from dflashctl.stages.demo.target import read_target
from dflashctl.transport.tail import read_events
from dflashctl.views.demo import outcome, stage_head
from dflashctl.views.mask import document_mask, legend
from dflashctl.views.tables import manifest
from dflashctl.views.training import TrainingBoard

WIDTH = 112


def draw(work: Path, picture: Path) -> None:
    report = read_demo(work / "demo.json")
    if report is None or not report.is_complete:
        sys.exit(f"{work} holds no finished demo: run `dflashctl demo --workdir {work}` first")
    run_yaml = yaml.safe_load((work / "run.yaml").read_text(encoding="utf-8"))
    plan = plan_demo(
        DemoSettings(
            target=Path(run_yaml["train"]["target"]),
            target_facts=read_target(Path(run_yaml["train"]["target"])),
            workdir=work,
            prompts=Path(run_yaml["evaluate"]["prompts"]),
            num_prompts=run_yaml["evaluate"]["num_prompts"],
            num_steps=run_yaml["train"]["num_steps"],
            responses=None if "generate" in run_yaml["data"] else Path(run_yaml["data"]["tokenize"]["input"]),
            train_prompts=work / "prompts-train.jsonl",
        )
    )
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    numbers = {stage.name: number for number, stage in enumerate(plan.stages, start=1)}
    inspect, train = (plan.stages[numbers[name] - 1] for name in ("data inspect", "train start"))
    console.print(stage_head(numbers[inspect.name], len(plan.stages), inspect))
    inspected = read_inspection(work / "inspected.json")
    console.print(legend(), document_mask(inspected.documents[0]), sep="\n")
    console.print(stage_head(numbers[train.name], len(plan.stages), replace(train, resume=None)))
    events = read_events(plan.run_folder / "events.jsonl")
    board = TrainingBoard(plan.run_folder.name, lambda: events[-1].at_s)
    for event in events:
        board.add(event)
    console.print(board)
    folder = train.done_when.parent
    console.print(
        manifest(f"the checkpoint, in the z-lab layout: {folder}", CheckpointRef(folder, None, None).manifest())
    )
    console.print(outcome(report, plan, read_report(plan.benchmark)))
    svg = console.export_svg(title="dflashctl demo")
    # Without the fonts that rich's template fetches from the network: the viewer's own monospace is good enough.
    picture.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL), encoding="utf-8")
    print(json.dumps({"picture": str(picture), "steps": report.num_steps}))


if __name__ == "__main__":
    arguments = [Path(argument) for argument in sys.argv[1:]]
    draw(*(arguments + [Path("dflashctl-demo"), Path("docs/demo.svg")][len(arguments) :]))
