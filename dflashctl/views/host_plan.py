"""What a start or a resume on a host will do: for --dry-run."""

import shlex
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from dflashctl.stages.train.on_host import HostPlan
from dflashctl.views.palette import ACCENT, CAUTION, binary
from dflashctl.views.tables import pairs, training_figures


def host_plan(plan: HostPlan) -> tuple[RenderableType, ...]:
    """Secrets are shown by name and length only. Strings are what must not be cut or wrapped."""
    job = plan.job
    grid = pairs()
    grid.add_row("host", plan.host)
    grid.add_row("folder", Text(job.folder))
    grid.add_row("free there", "not told" if plan.free_bytes is None else binary(plan.free_bytes))
    grid.add_row(
        "bundle", Text(f"{plan.bundle.root} ({'there' if plan.bundle.presence == 'there' else 'will be sent'})")
    )
    grid.add_row("environment", Text(_environment(plan)))
    grid.add_row("gpus", Text(", ".join(job.gpus) or "none"))
    grid.add_row("port", "a free one, leased" if job.needs_port else "none")
    grid.add_row("restarts", f"{job.num_restarts} after a bad end, {job.restart_delay_s:g} s apart")
    grid.add_row("argv", Text(shlex.join(job.argv)))
    grid.add_row("env", Text(" ".join(f"{name}={shlex.quote(value)}" for name, value in job.env)))
    if job.secrets:
        grid.add_row("secrets", Text(", ".join(f"{name} ({len(value)} characters)" for name, value in job.secrets)))
    return (
        training_figures(plan.figures, plan.record.train.num_steps),
        Text("would run, nothing was started or sent", style=CAUTION),
        grid,
        Text(str(plan.process.spec_path), style=ACCENT),
        plan.process.spec_json.rstrip(),
        Text("launched by this script, on the standard input of /bin/sh -s", style=ACCENT),
        plan.script().rstrip(),
    )


def host_plan_document(plan: HostPlan) -> dict[str, Any]:
    """The same for machines. Fields are named one by one: what holds a secret's value is never written whole."""
    job = plan.job
    return {
        "host": plan.host,
        "run": plan.run,
        "record": plan.record,
        "figures": plan.figures,
        "folder": job.folder,
        "argv": job.argv,
        "env": dict(job.env),
        "secrets": {name: len(value) for name, value in job.secrets},
        "gpus": job.gpus,
        "restarts": job.num_restarts,
        "bundle": {"root": plan.bundle.root, "presence": plan.bundle.presence},
        "environment": {"name": plan.environment_name, "is_there": plan.has_environment, "python": job.argv[0]},
        "free_bytes": plan.free_bytes,
        "script": plan.script(),
    }


def _environment(plan: HostPlan) -> str:
    if not plan.environment_name:
        return f"{plan.process.job.argv[0]}, as it is"
    state = "there" if plan.has_environment else f"will be made with {plan.environment.kind}"
    return f"{plan.found.folder}/{plan.environment_name} ({state})"
