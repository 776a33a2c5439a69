"""A training run under a host's supervisor, planned and started. The host may be this machine.

`train plan` and `--dry-run` go as far as the plan, which changes nothing anywhere.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dflashctl.artifacts import RunRef, Workdir
from dflashctl.errors import ConfigError, JobFailed
from dflashctl.facts.train_site import TrainSite, train_site
from dflashctl.operations import bundle as bundles
from dflashctl.operations import environment as environments
from dflashctl.operations.environment_plan import EnvironmentPlan, plan_environment
from dflashctl.operations.launch import launch, launch_script
from dflashctl.operations.supervised import Launched, SupervisedJob
from dflashctl.stages.jobs import JobPlan, Site
from dflashctl.stages.train.gpu_choice import busy_gpus, choose_gpus
from dflashctl.stages.train.place import Place
from dflashctl.stages.train.placing import idle_gpus, refuse_several_hosts, refuse_too_few
from dflashctl.stages.train.plan import Figures, figures_of, plan_run_job, record_of
from dflashctl.transport.base import Git
from dflashctl_remote.spec.process import MARKER
from dflashctl_remote.spec.train import RunRecord, TrainSpec

Say = Callable[[str], None]
NUM_CHECKPOINTS_ROOM = 2
"""Of estimated size, must find room: one is written beside the one before."""


@dataclass(frozen=True)
class Wanted:
    """What was asked for, before the host was asked."""

    spec: TrainSpec
    run_id: str
    gpus: tuple[str, ...]
    bundle_sha: str
    git: Git | None
    secrets: tuple[tuple[str, str], ...]
    num_restarts: int
    now_s: float


@dataclass(frozen=True)
class HostPlan:
    """Exactly what a start or a resume will do on a host."""

    host: str
    run: RunRef
    record: RunRecord
    figures: Figures
    process: JobPlan
    job: SupervisedJob
    bundle: bundles.BundleState
    environment: EnvironmentPlan
    found: environments.HostEnvironments
    environment_name: str
    """Empty: the host's interpreter as it is."""
    has_environment: bool
    free_bytes: int | None
    warnings: tuple[str, ...]
    exists: bool
    """There is something at the run's folder already."""
    is_resume: bool

    def script(self) -> str:
        """What launches it, secrets masked; its nonce, which is drawn at the launch, as zeros."""
        return launch_script(self.job, "0" * 32, is_resume=self.is_resume).shown()


def plan_start(place: Place, wanted: Wanted) -> HostPlan:
    """Ask the host once for all that the plan must know. Raises ConfigError, ArtifactError, HostUnreachable."""
    asked = _ask(place, wanted.spec, wanted.run_id, wanted.secrets)
    ref = Workdir(Path(asked.site.workdir)).new_run(wanted.run_id)
    run = RunRef(ref.run_id, ref.folder, place.host, place.options)
    spec = wanted.spec.model_copy(update={"target": asked.site.target, "dataset": asked.site.dataset})
    record = record_of(spec, run, bundle_sha=wanted.bundle_sha, git=wanted.git, now_s=wanted.now_s)
    return _plan(place, asked, run, record, wanted.gpus, wanted.secrets, wanted.num_restarts, is_resume=False)


def plan_resume(
    place: Place,
    run: RunRef,
    record: RunRecord,
    gpus: tuple[str, ...],
    secrets: tuple[tuple[str, str], ...],
    num_restarts: int,
) -> HostPlan:
    """Go on with the spec that the run was started with, by the code of today. Raises as `plan_start`."""
    asked = _ask(place, record.train, run.run_id, secrets)
    return _plan(place, asked, run, record, gpus, secrets, num_restarts, is_resume=True)


def carry_out(plan: HostPlan, place: Place, *, may_change_environment: bool, say: Say) -> Launched:
    """Send the bundle, make the environment, start; what is there already is used. Raises as those do."""
    refuse_several_hosts(plan.record.train.placement)
    if not plan.has_environment and not may_change_environment:
        # Before anything is sent.
        raise ConfigError(
            f"environment {plan.environment_name} would have to be made on {place.host}, which is protected",
            hint=f"add --touch {place.host}",
        )
    for warning in plan.warnings:
        say(warning)
    ready = bundles.ensure_bundle(place.shell, place.workdir, known=plan.bundle)
    if not ready.was_there:
        say(f"{place.host}: bundle {ready.sha[:12]} sent, {ready.sent_bytes / 1024:.0f} KiB")
    environments.ensure_environment(
        place.shell,
        place.workdir,
        plan.environment,
        ready.supervisor,
        say,
        allow_create=may_change_environment,
        known=plan.found,
    )
    return launch(place.shell, plan.job, is_resume=plan.is_resume, say=say)


@dataclass(frozen=True)
class _Asked:
    site: TrainSite
    bundle: bundles.BundleState
    environment: EnvironmentPlan
    found: environments.HostEnvironments


def _ask(place: Place, spec: TrainSpec, run_id: str, secrets: tuple[tuple[str, str], ...]) -> _Asked:
    wanted = plan_environment(place.spec, place.host, secrets=secrets)
    values = dict(bundles.question_values(place.workdir)) | dict(environments.question_values(wanted, place.workdir))
    site = train_site(
        place.shell,
        workdir=place.workdir,
        target=spec.target,
        dataset=spec.dataset,
        run_id=run_id,
        questions=f"{bundles.QUESTION}\n{environments.QUESTION}\nbundle_question\nenvironment_question\n",
        values=tuple(values.items()),
    )
    told, found = bundles.read_bundle(site.answer), environments.read_environments(site.answer)
    if told is None or found is None:
        reason = site.answer.err.strip().rpartition("\n")[2] or "nothing"
        raise JobFailed(f"{place.host} was asked what is there and said: {reason}", host=place.host)
    return _Asked(site, told, wanted, found)


def _plan(
    place: Place,
    asked: _Asked,
    run: RunRef,
    record: RunRecord,
    gpus: tuple[str, ...],
    secrets: tuple[tuple[str, str], ...],
    num_restarts: int,
    *,
    is_resume: bool,
) -> HostPlan:
    there = environments.find_environment(asked.environment, asked.found)
    found = asked.found
    name = "" if there is not None and not there.name else asked.environment.named(found.python_version, found.platform)
    python = there.python if there is not None else f"{found.folder}/{name}/bin/python"
    process = plan_run_job(run, record, Site(place.host, python, Path(asked.bundle.root)), is_detached=True)
    placement = record.train.placement
    if gpus and record.train.device != "cpu":
        refuse_too_few(placement, len(set(gpus)))
    leased = choose_gpus(
        place.host,
        asked.site.gpus,
        wanted=gpus,
        num_wanted=0 if record.train.device == "cpu" else placement.num_gpus,
    )
    num_gpus = 0 if record.train.device == "cpu" else len(leased)
    figures = figures_of(record.train, asked.site.target_size, asked.site.dataset_info, num_gpus=num_gpus)
    _refuse_full_disk(place.host, asked.site, figures)
    job = SupervisedJob(
        name=run.run_id,
        folder=str(run.folder),
        argv=process.job.argv,
        # The launch gives the processes a marker of their own.
        env=(*(pair for pair in process.job.env if pair[0] != MARKER), *place.spec.variables.items()),
        files=() if is_resume else ((run.record_path.name, process.spec_json),),
        supervisor=f"{asked.bundle.root}/dflashctl_remote/supervisor",
        workdir=asked.site.workdir,
        secrets=secrets,
        gpus=leased,
        needs_port=placement.ranks > 1,
        num_restarts=num_restarts,
    )
    return HostPlan(
        host=place.host,
        run=run,
        record=record,
        figures=figures,
        process=process,
        job=job,
        bundle=asked.bundle,
        environment=asked.environment,
        found=found,
        environment_name=name,
        has_environment=there is not None,
        free_bytes=asked.site.free_bytes,
        warnings=(*busy_gpus(place.host, asked.site.gpus, leased), *idle_gpus(placement, leased)),
        exists=asked.site.run_exists,
        is_resume=is_resume,
    )


def _refuse_full_disk(host: str, site: TrainSite, figures: Figures) -> None:
    needed = NUM_CHECKPOINTS_ROOM * figures.estimated_checkpoint_bytes
    if site.free_bytes is not None and site.free_bytes < needed:
        raise ConfigError(
            f"{site.workdir} on {host} has {_size(site.free_bytes)} free, and {NUM_CHECKPOINTS_ROOM} checkpoints "
            f"are estimated at {_size(needed)}",
            hint="free space there, or another workdir for that host in hosts.yaml",
        )


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"
