"""dflashctl train: plan, start, list, logs, watch, stop, resume."""

import secrets
import time
from pathlib import Path
from typing import Annotated

import typer

from dflashctl.artifacts import DEFAULT_WORKDIR, Workdir
from dflashctl.cli.options import (
    Config,
    DryRun,
    Host,
    Json,
    RunArgument,
    Set,
    WorkdirOption,
    author,
    overrides_of,
    site_of,
    transport_of,
)
from dflashctl.cli.output import Output
from dflashctl.config.load import Override

app = typer.Typer(no_args_is_help=True, help="Train a drafter; watch, stop and resume runs.")

Target = Annotated[Path | None, typer.Option("--target", metavar="DIR", help="The frozen target's folder.")]
Dataset = Annotated[Path | None, typer.Option("--dataset", metavar="DIR", help="Folder written by `data tokenize`.")]
Steps = Annotated[int | None, typer.Option("--steps", help="Optimizer steps of the whole run.")]
RunId = Annotated[str | None, typer.Option("--run-id", metavar="NAME", help="Default: date, time, three letters.")]
Detach = Annotated[bool, typer.Option("--detach", help="Start it and return; it outlives this terminal.")]


@app.command()
def plan(
    config: Config = None,
    set_: Set = None,
    target: Target = None,
    dataset: Dataset = None,
    steps: Steps = None,
    run_id: RunId = None,
    workdir: WorkdirOption = DEFAULT_WORKDIR,
    host: Host = "local",
    json: Json = False,
) -> None:
    """Print what `train start` would run: resolved spec, steps, tokens, anchors, parameters, bytes."""
    from dflashctl.cli.start_run import make_plan
    from dflashctl.views.tables import train_plan

    overrides = _overrides(set_, target, dataset, steps)
    name = _new_run_id() if run_id is None else run_id
    made = make_plan(config, overrides, name, workdir, transport_of(host))
    Output(is_json=json).result(made, train_plan(made))


@app.command()
def start(
    config: Config = None,
    set_: Set = None,
    target: Target = None,
    dataset: Dataset = None,
    steps: Steps = None,
    run_id: RunId = None,
    detach: Detach = False,
    workdir: WorkdirOption = DEFAULT_WORKDIR,
    host: Host = "local",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Start a run and watch it. Ctrl-C stops it in good order; `train resume` goes on from there."""
    from dflashctl.cli.start_run import make_plan, watch_own
    from dflashctl.stages.train.apply import start as start_run
    from dflashctl.views.tables import train_plan

    transport = transport_of(host)
    overrides = _overrides(set_, target, dataset, steps)
    made = make_plan(
        config, overrides, _new_run_id() if run_id is None else run_id, workdir, transport, is_detached=detach
    )
    out = Output(is_json=json)
    if dry_run:
        out.result(made, train_plan(made))
        return
    handle = start_run(made, transport)
    watch_own(handle, made.run, transport, out, is_detached=detach)


@app.command()
def resume(
    run: RunArgument,
    detach: Detach = False,
    workdir: WorkdirOption = DEFAULT_WORKDIR,
    host: Host = "local",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Go on from a run's newest complete checkpoint, with the spec it was started with."""
    from dflashctl.cli.start_run import watch_own
    from dflashctl.facts.runs import read_record
    from dflashctl.stages.train.apply import resume as resume_run
    from dflashctl.stages.train.plan import plan_run_job
    from dflashctl.views.tables import job_plan

    transport = transport_of(host)
    ref = Workdir(workdir.expanduser().absolute()).run(run)
    job = plan_run_job(ref, read_record(ref), site_of(transport), is_detached=detach)
    out = Output(is_json=json)
    if dry_run:
        out.result(job, job_plan(job))
        return
    handle = resume_run(ref, job, transport)
    watch_own(handle, ref, transport, out, is_detached=detach)


@app.command("list")
def list_(workdir: WorkdirOption = DEFAULT_WORKDIR, host: Host = "local", json: Json = False) -> None:
    """The runs of a work folder, with the state of each and the age of its last event."""
    from dflashctl.facts.runs import state_if_readable
    from dflashctl.views.tables import runs

    transport = transport_of(host)
    states = [state_if_readable(ref, transport) for ref in Workdir(workdir.expanduser().absolute()).runs()]
    out = Output(is_json=json)
    if not states:
        out.result([], f"no run in {workdir}")
        return
    out.result(states, runs(states, time.time()))


@app.command()
def logs(
    run: RunArgument,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="So many from the end.")] = 40,
    raw: Annotated[bool, typer.Option("--raw", help="What the process printed, instead of its events.")] = False,
    workdir: WorkdirOption = DEFAULT_WORKDIR,
    host: Host = "local",
    json: Json = False,
) -> None:
    """The end of a run's account."""
    from dflashctl.cli.start_run import log_lines
    from dflashctl.transport.tail import read_events

    transport_of(host)
    ref = Workdir(workdir.expanduser().absolute()).run(run)
    out = Output(is_json=json)
    if raw:
        text = ref.log_path.read_text(encoding="utf-8", errors="replace") if ref.log_path.is_file() else ""
        tail = text.splitlines()[-lines:]
        out.result(tail, "\n".join(tail))
        return
    events = read_events(ref.events_path)
    out.result(events[-lines:], "\n".join(log_lines(events)[-lines:]))


@app.command()
def watch(run: RunArgument, workdir: WorkdirOption = DEFAULT_WORKDIR, host: Host = "local", json: Json = False) -> None:
    """Watch a run that was started elsewhere. Ctrl-C ends the watching, not the run."""
    from dflashctl.cli.start_run import watch_other

    ref = Workdir(workdir.expanduser().absolute()).run(run)
    watch_other(ref, transport_of(host), Output(is_json=json))


@app.command()
def stop(
    run: RunArgument,
    wait_s: Annotated[float, typer.Option("--wait", min=0, help="Seconds to wait for its checkpoint.")] = 120.0,
    workdir: WorkdirOption = DEFAULT_WORKDIR,
    host: Host = "local",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Ask a run to save a checkpoint and stop, and wait for it. No signal is sent."""
    from dflashctl.cli.start_run import wait_stopped
    from dflashctl.stages.train.apply import request_stop

    transport = transport_of(host)
    ref = Workdir(workdir.expanduser().absolute()).run(run)
    out = Output(is_json=json)
    if dry_run:
        out.result({"writes": ref.stop_path}, f"would write {ref.stop_path}")
        return
    request_stop(ref, transport, who=author(), now_s=time.time())
    state = wait_stopped(ref, transport, out, wait_s)
    out.result(state, f"run {run} is {state.state}; go on with: {ref.command('resume')}")


def _overrides(
    sets: list[str] | None, target: Path | None, dataset: Path | None, steps: int | None
) -> tuple[Override, ...]:
    return overrides_of(
        sets,
        target=("train.target", target),
        dataset=("train.dataset", dataset),
        steps=("train.num_steps", steps),
    )


def _new_run_id() -> str:
    return time.strftime("%Y%m%d-%H%M%S-") + "".join(secrets.choice("abcdefghjkmnpqrstuvwxyz") for _ in range(3))
