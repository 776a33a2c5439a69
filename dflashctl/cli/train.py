"""dflashctl train: plan, start, list, logs, watch, stop, resume.

On this machine a run that is watched is a child of this process; everything else, here and on other hosts, goes through
a host's shell and its supervisor: host_runs.py.
"""

import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflashctl.cli.options import (
    Config,
    DryRun,
    Host,
    HostsOption,
    Json,
    RunArgument,
    Set,
    Touch,
    inventory_of,
    overrides_of,
    site_of,
    transport_of,
)
from dflashctl.cli.output import Output
from dflashctl.config.load import Override
from dflashctl.defaults import DEFAULT_WORKDIR, LOCAL
from dflashctl.errors import ConfigError
from dflashctl.transport.base import Git

if TYPE_CHECKING:
    from dflashctl.artifacts import Workdir
    from dflashctl.stages.train.on_host import HostPlan
    from dflashctl.stages.train.place import Place

app = typer.Typer(no_args_is_help=True, help="Train a drafter; watch, stop and resume runs.")

Target = Annotated[Path | None, typer.Option("--target", metavar="DIR", help="The frozen target's folder.")]
Dataset = Annotated[Path | None, typer.Option("--dataset", metavar="DIR", help="Folder written by `data tokenize`.")]
Steps = Annotated[int | None, typer.Option("--steps", help="Optimizer steps of the whole run.")]
RunId = Annotated[str | None, typer.Option("--run-id", metavar="NAME", help="Default: date, time, three letters.")]
Detach = Annotated[bool, typer.Option("--detach", help="Start it and return; it outlives this terminal.")]
WorkdirOption = Annotated[
    Path | None,
    typer.Option("--workdir", metavar="DIR", help=f"Default: that of the host; here {DEFAULT_WORKDIR}."),
]
Restarts = Annotated[
    int,
    typer.Option(
        "--restarts", min=0, help="So often a supervised run is started again after a bad end, never after a stop."
    ),
]
GpuOption = Annotated[
    list[str] | None,
    typer.Option("--gpu", metavar="UUID", help="Or its number; repeatable. Default: one that nobody uses, if any."),
]


@app.command()
def plan(
    config: Config = None,
    set_: Set = None,
    target: Target = None,
    dataset: Dataset = None,
    steps: Steps = None,
    run_id: RunId = None,
    gpu: GpuOption = None,
    workdir: WorkdirOption = None,
    host: Host = LOCAL,
    hosts: HostsOption = None,
    json: Json = False,
) -> None:
    """Print what `train start` would run: resolved spec, steps, tokens, anchors, parameters, bytes."""
    overrides = _overrides(set_, target, dataset, steps)
    name = _new_run_id() if run_id is None else run_id
    out = Output(is_json=json)
    if host != LOCAL:
        _show_host_plan(host, hosts, workdir, config, overrides, name, gpu, out)
        return
    from dflashctl.cli.start_run import make_plan
    from dflashctl.views.tables import train_plan

    made = make_plan(config, overrides, name, workdir or DEFAULT_WORKDIR, transport_of(host))
    out.result(made, train_plan(made))


@app.command()
def start(
    config: Config = None,
    set_: Set = None,
    target: Target = None,
    dataset: Dataset = None,
    steps: Steps = None,
    run_id: RunId = None,
    gpu: GpuOption = None,
    restarts: Restarts = 0,
    detach: Detach = False,
    touch: Touch = None,
    workdir: WorkdirOption = None,
    host: Host = LOCAL,
    hosts: HostsOption = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Start a run and watch it. Here Ctrl-C stops it in good order; on another host, or detached, it goes on."""
    overrides = _overrides(set_, target, dataset, steps)
    name = _new_run_id() if run_id is None else run_id
    out = Output(is_json=json)
    if host != LOCAL or detach:
        place = _reached(host, hosts, workdir)
        from dflashctl.cli import host_start

        made = host_start.plan_new(
            place, config, overrides, name, tuple(gpu or ()), _git(), num_restarts=restarts, is_dry_run=dry_run
        )
        if dry_run:
            _show_plan(made, out)
            return
        host_start.begin(place, made, out, tuple(touch or ()), is_detached=detach)
        return
    _refuse_unsupervised(gpu, restarts)
    _gate_here("train start", hosts, name, touch)
    from dflashctl.cli.start_run import make_plan, watch_own
    from dflashctl.stages.train.apply import start as start_run
    from dflashctl.views.tables import train_plan

    transport = transport_of(host)
    own = make_plan(config, overrides, name, workdir or DEFAULT_WORKDIR, transport)
    if dry_run:
        out.result(own, train_plan(own))
        return
    handle = start_run(own, transport)
    watch_own(handle, own.run, transport, out)


@app.command()
def resume(
    run: RunArgument,
    gpu: GpuOption = None,
    restarts: Restarts = 0,
    detach: Detach = False,
    touch: Touch = None,
    workdir: WorkdirOption = None,
    host: Host = LOCAL,
    hosts: HostsOption = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Go on from a run's newest complete checkpoint, with the spec it was started with."""
    out = Output(is_json=json)
    if host != LOCAL or detach:
        place = _reached(host, hosts, workdir)
        from dflashctl.cli import host_start

        made = host_start.plan_again(
            place, run, tuple(gpu or ()), tuple(touch or ()), num_restarts=restarts, is_dry_run=dry_run
        )
        if dry_run:
            _show_plan(made, out)
            return
        host_start.begin(place, made, out, tuple(touch or ()), is_detached=detach)
        return
    _refuse_unsupervised(gpu, restarts)
    from dflashctl.cli.start_run import watch_own
    from dflashctl.facts.runs import read_record
    from dflashctl.stages.train.apply import resume as resume_run
    from dflashctl.stages.train.placing import refuse_several_hosts
    from dflashctl.stages.train.plan import plan_run_job
    from dflashctl.views.tables import job_plan

    transport = transport_of(host)
    ref = _local(workdir).run(run)
    record = read_record(ref)
    job = plan_run_job(ref, record, site_of(transport))
    if dry_run:
        out.result(job, job_plan(job))
        return
    refuse_several_hosts(record.train.placement)
    _gate_here("train resume", hosts, run, touch, is_resume=True, is_run_protected=record.train.protected)
    handle = resume_run(ref, job, transport)
    watch_own(handle, ref, transport, out)


@app.command("list")
def list_(
    workdir: WorkdirOption = None,
    host: Annotated[
        list[str] | None, typer.Option("--host", metavar="NAME", help="Repeatable. Default: this machine.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All hosts of hosts.yaml.")] = False,
    hosts: HostsOption = None,
    json: Json = False,
) -> None:
    """The runs of work folders, with the state of each and the age of its last event."""
    out = Output(is_json=json)
    if all_ or (host and set(host) != {LOCAL}):
        from dflashctl.cli.host_runs import list_runs
        from dflashctl.cli.places import places_of

        list_runs(places_of(host or [], hosts, workdir, takes_all=all_), out)
        return
    from dflashctl.facts.runs import state_if_readable
    from dflashctl.views.tables import runs

    transport = transport_of(LOCAL)
    states = [state_if_readable(ref, transport) for ref in _local(workdir).runs()]
    if not states:
        out.result([], f"no run in {workdir or DEFAULT_WORKDIR}")
        return
    out.result(states, runs(states, {LOCAL: time.time()}))


@app.command()
def logs(
    run: RunArgument,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="So many from the end.")] = 40,
    raw: Annotated[bool, typer.Option("--raw", help="What the process printed, instead of its events.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="And all that comes, until it ends.")] = False,
    workdir: WorkdirOption = None,
    host: Host = LOCAL,
    hosts: HostsOption = None,
    json: Json = False,
) -> None:
    """The end of a run's account; with -f all that comes after it, through lost links and rotated logs."""
    from dflashctl.cli import host_runs
    from dflashctl.cli.places import place_of

    place = place_of(host, hosts, workdir)
    host_runs.logs(place, run, lines, Output(is_json=json), is_raw=raw, follows=follow)


@app.command()
def watch(
    run: RunArgument,
    workdir: WorkdirOption = None,
    host: Host = LOCAL,
    hosts: HostsOption = None,
    json: Json = False,
) -> None:
    """Watch a run that was started elsewhere. Ctrl-C ends the watching, not the run."""
    out = Output(is_json=json)
    if host != LOCAL:
        from dflashctl.cli import host_runs
        from dflashctl.cli.places import place_of

        host_runs.watch(place_of(host, hosts, workdir), run, out)
        return
    from dflashctl.cli.start_run import watch_other

    watch_other(_local(workdir).run(run), transport_of(host), out)


@app.command()
def stop(
    run: RunArgument,
    grace_s: Annotated[
        float,
        typer.Option("--grace", "--wait", min=0, max=604800, help="Seconds for its checkpoint; then it is killed."),
    ] = 120.0,
    touch: Touch = None,
    workdir: WorkdirOption = None,
    host: Host = LOCAL,
    hosts: HostsOption = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Have a run save a checkpoint and end, kill what does not, and prove that nothing of it is left."""
    from dflashctl.cli import host_runs
    from dflashctl.cli.places import place_of

    place = place_of(host, hosts, workdir)
    host_runs.stop(place, run, grace_s, Output(is_json=json), tuple(touch or ()), is_dry_run=dry_run)


def _gate_here(
    what: str,
    hosts: Path | None,
    run: str,
    touch: list[str] | None,
    *,
    is_resume: bool = False,
    is_run_protected: bool = False,
) -> None:
    """For a run that is a child of this command. A start touches nothing that is protected."""
    from dflashctl.config.protection import require_touch

    is_protected = is_resume and inventory_of(hosts).lookup(LOCAL).protected
    require_touch(
        what,
        host=LOCAL,
        is_host_protected=is_protected,
        run=run,
        is_run_protected=is_run_protected,
        given=tuple(touch or ()),
    )


def _refuse_unsupervised(gpus: list[str] | None, restarts: int) -> None:
    """What only a supervisor can do is not passed over in silence."""
    if gpus or restarts:
        given = "--gpu" if gpus else "--restarts"
        raise ConfigError(f"{given} needs a supervisor, and a run that is watched from here has none", hint="--detach")


def _show_host_plan(
    host: str,
    hosts: Path | None,
    workdir: Path | None,
    config: Path | None,
    overrides: tuple[Override, ...],
    run_id: str,
    gpus: list[str] | None,
    out: Output,
) -> None:
    place = _reached(host, hosts, workdir)
    from dflashctl.cli import host_start

    made = host_start.plan_new(place, config, overrides, run_id, tuple(gpus or ()), _git(), num_restarts=0)
    _show_plan(made, out)


def _show_plan(plan: "HostPlan", out: Output) -> None:
    from dflashctl.views.host_plan import host_plan, host_plan_document

    out.result(host_plan_document(plan), *host_plan(plan))


def _reached(host: str, hosts: Path | None, workdir: Path | None) -> "Place":
    """The connection is made while what asks over it is still being loaded."""
    from dflashctl.cli.places import place_of

    place = place_of(host, hosts, workdir)
    place.shell.reach()
    return place


def _git() -> Git | None:
    """Of the working tree that this code lies in, wherever it will run."""
    from dflashctl.bundle import bundle_root

    return transport_of(LOCAL).git(bundle_root())


def _local(workdir: Path | None) -> "Workdir":
    from dflashctl.artifacts import Workdir

    return Workdir((workdir or DEFAULT_WORKDIR).expanduser().absolute())


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
