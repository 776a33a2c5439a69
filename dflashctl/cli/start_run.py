"""What the train commands share: making a plan from what is on disk, and watching a run."""

import time
from pathlib import Path

from dflashctl.artifacts import DatasetRef, RunRef, Workdir
from dflashctl.bundle import bundle_root, bundle_sha
from dflashctl.cli.follow import Watcher, follow_to_end
from dflashctl.cli.options import site_of
from dflashctl.cli.output import Output
from dflashctl.cli.run_report import report
from dflashctl.config.load import Override
from dflashctl.config.run import load_section
from dflashctl.facts.runs import is_running, state_of
from dflashctl.stages.train.plan import TrainPlan, plan_train
from dflashctl.targets import read_target_size
from dflashctl.transport.base import JobHandle, Transport
from dflashctl.views.training import TrainingBoard
from dflashctl_remote.spec.events import Failed, Finished, Started, Stopped
from dflashctl_remote.spec.train import TrainSpec

START_S = 60.0
"""Loading torch, on a machine with a cold disk, comes before a job's first word."""


def make_plan(
    config: Path | None,
    overrides: tuple[Override, ...],
    run_id: str,
    workdir: Path,
    transport: Transport,
) -> TrainPlan:
    """Resolve the train section and read what the plan needs of target, dataset and working tree."""
    spec = with_absolute_paths(load_section("train", TrainSpec, config, overrides))
    return plan_train(
        spec,
        Workdir(workdir.expanduser().absolute()).new_run(run_id),
        site_of(transport),
        target=read_target_size(spec.target),
        dataset=DatasetRef(Path(spec.dataset)).info(),
        bundle_sha=bundle_sha(),
        git=transport.git(bundle_root()),
        now_s=time.time(),
    )


def with_absolute_paths(spec: TrainSpec) -> TrainSpec:
    """The spec for this machine, where a job starts in another folder than whoever wrote the paths stands in."""
    paths = {name: getattr(spec, name) for name in ("target", "dataset", "warm_start")}
    given = {name: str(Path(path).expanduser().absolute()) for name, path in paths.items() if path is not None}
    return spec.model_copy(update=given)


def watch_own(handle: JobHandle, run: RunRef, transport: Transport, out: Output) -> None:
    """Follow a run that this process started to its end."""
    out.say(f"run {run.run_id} in {run.folder}")
    watcher = Watcher(out, TrainingBoard(run.run_id, time.time))
    follow_to_end(handle, watcher, host=transport.name, resume_hint=run.command("resume"))
    report_state(run, transport, out)


def watch_other(run: RunRef, transport: Transport, out: Output, *, start_s: float = START_S) -> None:
    """Show a run from its first event until it ends. Ctrl-C leaves it running.

    A run that has not said within `start_s` which process it is will not any more.
    """
    silent_until_s = time.monotonic() + start_s
    watcher = Watcher(out, TrainingBoard(run.run_id, time.time))
    pid: int | None = None
    ended = False

    def is_over() -> bool:
        if pid is None:
            return ended or time.monotonic() >= silent_until_s
        return ended or not is_running(run, pid, transport)

    if not run.events_path.exists():
        pid = 0
    with watcher.shown():
        for event in transport.follow(run.events_path, until=is_over):
            watcher.add(event)
            if isinstance(event, Started):
                pid, ended = event.pid, False
            elif isinstance(event, Finished | Stopped | Failed):
                ended = True
    report_state(run, transport, out)


def report_state(run: RunRef, transport: Transport, out: Output) -> None:
    """The last word on a run, and what it left."""
    report(state_of(run, transport), out)
