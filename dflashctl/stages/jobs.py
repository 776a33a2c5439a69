"""A job of any stage: the plan of a process on a host, and its start. What a job does is the stages' business."""

from dataclasses import dataclass
from pathlib import Path

from dflashctl.errors import ConfigError
from dflashctl.transport.base import Job, JobHandle, Transport
from dflashctl_remote.spec.base import Spec
from dflashctl_remote.spec.manifest import write_atomically
from dflashctl_remote.spec.process import MARKER

_RANKS = "dflashctl_remote.entry.ranks"
NEEDED_MODULES = ("torch", "transformers", "numpy", "safetensors")


@dataclass(frozen=True)
class Site:
    """What a plan must know of the place that it is for."""

    host: str
    python: str
    bundle_root: Path


@dataclass(frozen=True)
class JobPlan:
    """Exactly what will run: shown by --dry-run, carried out by `start_job`."""

    host: str
    job: Job
    spec_path: Path
    spec_json: str
    writes: tuple[Path, ...]
    """What the job leaves behind beside its events and log."""


def plan_job(
    name: str,
    spec: Spec,
    folder: Path,
    site: Site,
    *,
    writes: tuple[Path, ...],
    spec_name: str = "spec.json",
    is_detached: bool = False,
    num_ranks: int = 1,
) -> JobPlan:
    """The job `name`, whose spec, events and log lie in `folder`; as so many processes at once. Pure."""
    spec_path = folder / spec_name
    events = folder / "events.jsonl"
    entry = (f"dflashctl_remote.entry.{name}",) if num_ranks == 1 else (_RANKS, "--ranks", str(num_ranks))
    argv = (site.python, "-m", *entry, "--spec", str(spec_path), "--events", str(events))
    env = (
        ("PYTHONPATH", str(site.bundle_root)),
        ("PYTHONUNBUFFERED", "1"),
        # How long a thread spins before it sleeps: endless spinning starves a busy machine, none at all wastes an idle
        # one. A training step on two cores, context tokens/s idle / beside one busy process, 2026-11-30: 20000: 3,350 /
        # not 15 steps in a minute; 2000: 3,810 / 1,310; 200: 2,880 / 2,270; OMP_WAIT_POLICY=PASSIVE: 2,540 / 2,280.
        ("GOMP_SPINCOUNT", "2000"),
        (MARKER, str(folder)),
    )
    job = Job(name, argv, env, events=events, log=folder / "log", is_detached=is_detached)
    return JobPlan(site.host, job, spec_path, spec.model_dump_json(indent=2) + "\n", writes)


def start_job(plan: JobPlan, transport: Transport) -> JobHandle:
    """Write the spec and start the process. Raises ConfigError if the host lacks what jobs need."""
    require_modules(transport)
    plan.spec_path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(plan.spec_path, plan.spec_json)
    return transport.start(plan.job)


def require_modules(transport: Transport) -> None:
    missing = transport.missing_modules(NEEDED_MODULES)
    if missing:
        raise ConfigError(
            f"jobs on host {transport.name} need {', '.join(missing)}, not found for {transport.python()}",
            hint="pip install 'dflashctl[train]' in that environment",
        )
