"""Training runs as children of this process: start, resume. Their state is facts/runs.py."""

import shutil

from dflashctl.artifacts import RunRef
from dflashctl.errors import ConfigError
from dflashctl.facts.runs import state_of
from dflashctl.stages.jobs import JobPlan, require_modules, start_job
from dflashctl.stages.train.placing import refuse_several_hosts
from dflashctl.stages.train.plan import TrainPlan
from dflashctl.transport.base import JobHandle, Transport
from dflashctl_remote.spec.manifest import write_atomically


def start(plan: TrainPlan, transport: Transport) -> JobHandle:
    """Create the run's folder and start it. Raises ConfigError if the name is taken: making the folder is the lock."""
    refuse_several_hosts(plan.record.train.placement)
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
        return _noted(plan.run, start_job(plan.job, transport), transport)
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
    return _noted(run, transport.start(job.job), transport)


def _noted(run: RunRef, handle: JobHandle, transport: Transport) -> JobHandle:
    """Write down who the process is; one that has ended by now leaves no token, and its events tell."""
    run.token_path.unlink(missing_ok=True)
    token = transport.token_of(handle.pid, str(run.folder))
    if token is not None:
        write_atomically(run.token_path, token.model_dump_json(indent=2) + "\n")
    return handle
