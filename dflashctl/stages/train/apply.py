"""Training runs: start, resume, ask to stop, and the state of those that are there."""

import shutil
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from dflashctl.artifacts import RunRef
from dflashctl.errors import ArtifactError, ConfigError
from dflashctl.stages.jobs import JobPlan, require_modules, start_job
from dflashctl.stages.train.plan import TrainPlan
from dflashctl.transport.base import JobHandle, Transport
from dflashctl.transport.tail import read_events
from dflashctl_remote.spec.events import CheckpointSaved, Failed, Finished, Started, Step, Stopped
from dflashctl_remote.spec.manifest import write_json
from dflashctl_remote.spec.train import RunRecord

State = Literal["starting", "running", "finished", "stopped", "failed", "ended without a word", "unreadable"]


@dataclass(frozen=True)
class RunState:
    """What is known of a run, from its own events and whether its process is there."""

    run: RunRef
    state: State
    last_event_at_s: float | None
    last_step: Step | None
    last_checkpoint: CheckpointSaved | None
    pid: int | None
    detail: str = ""
    """Why it stopped or failed."""


def read_record(run: RunRef) -> RunRecord:
    """Raises ArtifactError."""
    try:
        return RunRecord.model_validate_json(run.record_path.read_bytes())
    except OSError as error:
        raise ArtifactError(f"{run.record_path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]["msg"]
        raise ArtifactError(f"{run.record_path} cannot be read as a run's record: {first}") from error


def start(plan: TrainPlan, transport: Transport) -> JobHandle:
    """Create the run's folder and start it. Raises ConfigError if the name is taken: making the folder is the lock."""
    require_modules(transport)
    plan.run.folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        plan.run.folder.mkdir()
    except FileExistsError as error:
        if not plan.run.record_path.is_file():
            raise ConfigError(
                f"{plan.run.folder} exists already and holds no run, nothing was started",
                hint="remove it if no other start is at work there, or choose another --run-id",
            ) from error
        state = state_of(plan.run, transport).state
        raise ConfigError(
            f"run {plan.run.run_id} exists already ({state}), nothing was started",
            hint=f"{plan.run.command('resume')}, or choose another --run-id",
        ) from error
    try:
        return start_job(plan.job, transport)
    except BaseException:
        # Without its record it is no run: nobody could resume it, and the name would be taken for ever.
        if not plan.run.record_path.is_file():
            shutil.rmtree(plan.run.folder, ignore_errors=True)
        raise


def resume(run: RunRef, job: JobPlan, transport: Transport) -> JobHandle:
    """Start a run again from its newest complete checkpoint. Raises ConfigError if it runs or has finished."""
    state = state_of(run, transport)
    if state.state in ("running", "finished"):
        raise ConfigError(
            f"run {run.run_id} is {state.state}, there is nothing to resume",
            hint=run.command("watch"),
        )
    run.stop_path.unlink(missing_ok=True)
    require_modules(transport)
    return transport.start(job.job)


def request_stop(run: RunRef, transport: Transport, *, who: str, now_s: float) -> None:
    """Leave the note that the trainer looks for after every step. Raises ConfigError if the run is not running."""
    state = state_of(run, transport)
    if state.state != "running":
        raise ConfigError(f"run {run.run_id} is not running ({state.state}), nothing to stop")
    write_json(run.stop_path, {"who": who, "when_s": now_s})


def state_of(run: RunRef, transport: Transport) -> RunState:
    """Read the run's events; a process that is gone without a last word is called so, never `failed`."""
    started: Started | None = None
    step: Step | None = None
    saved: CheckpointSaved | None = None
    end: Any = None
    at_s: float | None = None
    for event in read_events(run.events_path):
        at_s = event.at_s
        if isinstance(event, Started):
            started, end = event, None
        elif isinstance(event, Step):
            step = event
        elif isinstance(event, CheckpointSaved):
            saved = event
        elif isinstance(event, Finished | Stopped | Failed):
            end = event
    state, detail = _judge(run, transport, started, end)
    return RunState(run, state, at_s, step, saved, started.pid if started else None, detail)


def state_if_readable(run: RunRef, transport: Transport) -> RunState:
    """For a list: one damaged run must not hide the others."""
    try:
        return state_of(run, transport)
    except (ArtifactError, OSError) as error:
        return RunState(run, "unreadable", None, None, None, None, str(error))


def _judge(run: RunRef, transport: Transport, started: Started | None, end: Any) -> tuple[State, str]:
    match end:
        case Finished():
            return "finished", ""
        case Stopped():
            return "stopped", end.reason
        case Failed():
            return "failed", end.message
    if started is None:
        return "starting", ""
    if is_running(run, started.pid, transport):
        return "running", ""
    return "ended without a word", f"process {started.pid} is gone and wrote no last event"


def is_running(run: RunRef, pid: int, transport: Transport) -> bool:
    return transport.is_alive(pid, str(run.record_path))
