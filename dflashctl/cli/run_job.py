"""What every command that runs a short job does: show the plan, or start it and follow it."""

import time
from pathlib import Path

from dflashctl.artifacts import Workdir
from dflashctl.cli.follow import Ended, Watcher, follow_to_end
from dflashctl.cli.output import Output
from dflashctl.stages.jobs import JobPlan, start_job
from dflashctl.transport.base import Transport
from dflashctl.views.job import JobBoard
from dflashctl.views.tables import job_plan


def job_folder(workdir: Path, name: str) -> Path:
    """A folder of its own for each start, so that no two accounts mix."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    jobs = Workdir(workdir.expanduser().absolute()).jobs
    folder = jobs / f"{name}-{stamp}"
    count = 1
    while folder.exists():
        count += 1
        folder = jobs / f"{name}-{stamp}-{count}"
    return folder


def run_job(plan: JobPlan, transport: Transport, out: Output, *, title: str, is_dry_run: bool) -> Ended | None:
    """None after a dry run. Raises what `start_job` and `follow_to_end` raise."""
    if is_dry_run:
        out.result(plan, job_plan(plan))
        return None
    watcher = Watcher(out, JobBoard(title, time.time))
    handle = start_job(plan, transport)
    return follow_to_end(handle, watcher, host=plan.host, resume_hint="give the same command again")
