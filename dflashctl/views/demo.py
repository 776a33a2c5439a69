"""The demo's own words: the plan of its stages, and what came out."""

import shlex

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from dflashctl.stages.bench.report import BenchReport
from dflashctl.stages.demo.apply import DemoReport
from dflashctl.stages.demo.plan import DemoPlan, DemoStage
from dflashctl.views.bench import outcome as benchmark
from dflashctl.views.evaluation import acceptance
from dflashctl.views.palette import ACCENT, QUIET, binary, duration, percent


def command_line(arguments: tuple[str, ...]) -> str:
    return shlex.join(("dflashctl", *arguments))


def stage_head(number: int, num_stages: int, stage: DemoStage) -> RenderableType:
    return Group(
        Text(),
        Rule(Text(f"{number}/{num_stages}  {stage.title}"), align="left", style=ACCENT),
        Text(f"$ {command_line(stage.next_command)}", style="bold", overflow="fold"),
    )


def dry_run(plan: DemoPlan) -> RenderableType:
    lines = [Text("would run, nothing was started", style="yellow")]
    for stage in plan.stages:
        note = "complete, would be skipped: " if stage.is_done else ""
        lines.append(Text(f"{note}{command_line(stage.next_command)}", style=QUIET if note else ""))
    return Group(*lines)


def outcome(report: DemoReport, plan: DemoPlan, served: BenchReport) -> RenderableType:
    """The tables that it was all for, where the time went, and what to try next."""
    parts: list[RenderableType] = [Text(), Rule(Text("what came out"), align="left", style=ACCENT)]
    if report.before is not None and report.after is not None:
        rows = (
            ("drafter before training", report.before),
            (f"drafter after {report.num_steps:,} steps", report.after),
        )
        parts.append(acceptance(rows))
    parts += [Text(), Text("served, over HTTP", style="bold"), benchmark(served)]
    parts += [Text(), _times(report), Text(), _next(plan)]
    return Group(*parts)


def _times(report: DemoReport) -> RenderableType:
    table = Table(box=None, header_style=QUIET, padding=(0, 2))
    table.add_column("stage")
    table.add_column("wall", justify="right")
    for stage in report.stages:
        table.add_row(stage.name, duration(stage.wall_s))
    table.add_row(Text("all", style="bold"), duration(sum(stage.wall_s for stage in report.stages)))
    remarks = []
    if report.final_loss is not None and report.final_accuracy is not None:
        remarks.append(
            f"training ended at loss {report.final_loss:.3f}, accuracy {percent(report.final_accuracy)} "
            f"(teacher-forced, not an acceptance)"
        )
    if report.peak_memory_bytes is not None:
        remarks.append(f"peak memory of training {binary(report.peak_memory_bytes)}")
    return Group(table, *(Text(remark, style=QUIET) for remark in remarks))


def _next(plan: DemoPlan) -> RenderableType:
    work = str(plan.settings.workdir)
    commands = (
        ("the runs that are there", ("train", "list", "--workdir", work)),
        ("where each setting comes from", ("config", "show", str(plan.run_file))),
        ("the two measurements side by side", ("eval", "compare", str(plan.before), str(plan.after))),
        ("serve it again", ("deploy", "up", "-c", str(plan.run_file), "--workdir", work)),
        ("what is known now, as a document", ("status", "--workdir", work, "--format", "md")),
        ("another run, twice as long", ("train", "start", "-c", str(plan.run_file), "--workdir", work,
                                        "--steps", str(2 * plan.num_steps))),
        ("your own target", ("demo", "--target", "/path/to/a/hugging-face/causal-lm", "--workdir", "my-demo")),
    )  # fmt: skip
    grid = Table.grid(padding=(0, 2))
    for what, arguments in commands:
        grid.add_row(Text(what, style=QUIET), Text(command_line(arguments)))
    return Group(Text("try next", style="bold"), grid)
