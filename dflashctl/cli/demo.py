"""dflashctl demo: the whole life of a drafter on this machine, each stage a command that you could type."""

import contextlib
import io
import time
from pathlib import Path
from typing import Annotated

import typer

from dflashctl.artifacts import Workdir
from dflashctl.cli.options import DryRun, Json
from dflashctl.cli.output import Output
from dflashctl.errors import DflashctlError, Interrupted
from dflashctl.stages.demo.apply import (
    DEMO_TARGET,
    HELDOUT_PROMPTS,
    DemoReport,
    StageTime,
    prepare,
    read_training,
    shipped_responses,
    write_demo,
)
from dflashctl.stages.demo.plan import NUM_EVAL_PROMPTS, NUM_STEPS, SERVER, DemoPlan, DemoSettings, plan_demo
from dflashctl.stages.demo.target import read_target


def demo(
    target: Annotated[
        Path | None,
        typer.Option("--target", metavar="DIR", help="A Hugging Face causal LM; default: the embedded one."),
    ] = None,
    workdir: Annotated[Path, typer.Option("--workdir", metavar="DIR", help="Everything it makes lies there.")] = Path(
        "dflashctl-demo"
    ),
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Training steps.")] = None,
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", metavar="FILE", help="Held-out prompts; default: the shipped ones."),
    ] = None,
    num_prompts: Annotated[
        int | None, typer.Option("--num-prompts", min=1, help="So many of them are measured on.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="One value of the demo's run.yaml; repeatable."),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Remove an earlier demo's folder first.")] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Make a drafter, measure its acceptance, serve it and benchmark it: on this machine, without a GPU, in minutes.

    Ctrl-C at any time: the same command goes on where it was.
    """
    from dflashctl.stages.bench.summary import read_report
    from dflashctl.views.demo import command_line, outcome
    from dflashctl.views.demo import dry_run as dry_run_view

    plan = _plan(target, workdir, steps, prompts, num_prompts, set_)
    out = Output(is_json=json)
    if dry_run:
        out.result(
            {"run_yaml": plan.run_yaml, "commands": [command_line(s.next_command) for s in plan.stages]},
            dry_run_view(plan),
        )
        return
    report = prepare(plan, is_fresh=fresh)
    if why := plan.settings.target_facts.why_mask:
        out.say(f"mask token {plan.settings.target_facts.mask_token_id}: {why}")
    try:
        report = _run_stages(plan, report, out, is_quiet=json)
    except BaseException:
        _end_server(plan, out)
        raise
    report = _completed(plan, report)
    write_demo(plan, report)
    served = read_report(plan.benchmark)
    out.result(report, outcome(report, plan, served), f"\nall figures: {_near(plan.report_path)}")


def _run_stages(plan: DemoPlan, report: DemoReport, out: Output, *, is_quiet: bool) -> DemoReport:
    """Each stage that is not complete, in turn; its time is kept whatever becomes of it."""
    from dflashctl.views.demo import command_line, stage_head

    for number, stage in enumerate(plan.stages, start=1):
        if stage.is_done:
            out.say(f"{number}/{len(plan.stages)}  {stage.name}: complete already ({stage.done_when})")
            continue
        out.progress.print(stage_head(number, len(plan.stages), stage))
        began_s = time.monotonic()
        try:
            _run(stage.next_command, is_quiet=is_quiet)
        except Interrupted as error:
            raise Interrupted(error.message, hint="the same command goes on from here") from error
        finally:
            report = _timed(report, stage.name, command_line(stage.command), time.monotonic() - began_s)
            write_demo(plan, report)
        if stage.resume is not None and stage.done_when is not None:
            _show_checkpoint(stage.done_when.parent, out)
    return report


def _end_server(plan: DemoPlan, out: Output) -> None:
    """A demo that is broken off leaves no server behind."""
    from dflashctl.cli.options import transport_of
    from dflashctl.stages.deploy.apply import bring_down

    transport = transport_of("local")
    server = Workdir(plan.settings.workdir.absolute()).server(SERVER)
    record = server.record()
    if record is not None and transport.presence(record.token) == "alive":
        bring_down(server, transport, say=out.say)


def _plan(
    target: Path | None,
    workdir: Path,
    steps: int | None,
    prompts: Path | None,
    num_prompts: int | None,
    sets: list[str] | None,
) -> DemoPlan:
    from dflashctl.config.load import parse_set

    chosen = _near(target or DEMO_TARGET)
    settings = DemoSettings(
        target=chosen,
        target_facts=read_target(chosen),
        workdir=workdir,
        prompts=_near(prompts or HELDOUT_PROMPTS),
        num_prompts=num_prompts or NUM_EVAL_PROMPTS,
        num_steps=steps or NUM_STEPS,
        responses=_near(shipped_responses()) if target is None else None,
        train_prompts=workdir / "prompts-train.jsonl",
        overrides=tuple(parse_set(text) for text in sets or ()),
    )
    return plan_demo(settings)


def _run(arguments: tuple[str, ...], *, is_quiet: bool) -> None:
    """One of our own command lines, through the parser and the command that a shell would reach."""
    from dflashctl.cli.app import make_app, run

    app = make_app((arguments[0],))
    if is_quiet:
        with contextlib.redirect_stdout(io.StringIO()):
            code = run(app, [*arguments, "--json"])
    else:
        code = run(app, list(arguments))
    if code:
        raise DflashctlError(f"{arguments[0]} {arguments[1]} ended with exit code {code}")


def _timed(report: DemoReport, name: str, command: str, wall_s: float) -> DemoReport:
    """The report with this stage's time, added to that of an earlier, broken-off go at the same command."""
    earlier = next((stage for stage in report.stages if stage.command == command), None)
    timed = StageTime(name=name, command=command, wall_s=wall_s + (earlier.wall_s if earlier else 0.0))
    others = tuple(stage for stage in report.stages if stage.command != command)
    return report.model_copy(update={"stages": (*others, timed)})


def _completed(plan: DemoPlan, report: DemoReport) -> DemoReport:
    from dflashctl.stages.evaluate.apply import read_report
    from dflashctl.stages.status.measured import read_benchmark

    training = read_training(plan)
    return report.model_copy(
        update={
            "is_complete": True,
            "num_steps": plan.num_steps,
            "final_loss": training.loss if training else None,
            "final_accuracy": training.accuracy if training else None,
            "peak_memory_bytes": training.peak_memory_bytes if training else None,
            "before": read_report(plan.before),
            "after": read_report(plan.after),
            "served": read_benchmark(plan.benchmark / "run.json"),
        }
    )


def _show_checkpoint(folder: Path, out: Output) -> None:
    from dflashctl.artifacts import CheckpointRef
    from dflashctl.views.tables import manifest

    content = CheckpointRef(folder, None, None).manifest()
    if not out.is_json:
        out.results.print(manifest(f"the checkpoint, in the z-lab layout: {folder}", content))


def _near(path: Path) -> Path:
    """The path as it is shortest to type from here."""
    full = path.expanduser().absolute()
    here = Path.cwd()
    return full.relative_to(here) if full.is_relative_to(here) else full
