"""Starting and resuming a run on any host, under its supervisor."""

import os
import time
from pathlib import Path

from dflashctl.bundle import bundle_sha
from dflashctl.cli.output import Output
from dflashctl.cli.places import gate, refuse_twins
from dflashctl.cli.start_run import with_absolute_paths
from dflashctl.config.load import Override
from dflashctl.config.protection import require_touch
from dflashctl.config.run import load_section
from dflashctl.config.secret_values import secret_values
from dflashctl.defaults import LOCAL
from dflashctl.errors import ArtifactError, ConfigError, Interrupted
from dflashctl.stages.train.on_host import HostPlan, Wanted, carry_out, plan_resume, plan_start
from dflashctl.stages.train.place import Place
from dflashctl.transport.base import Git
from dflashctl_remote.spec.train import TrainSpec


def plan_new(
    place: Place,
    config: Path | None,
    overrides: tuple[Override, ...],
    run_id: str,
    gpus: tuple[str, ...],
    git: Git | None,
    *,
    num_restarts: int,
    is_dry_run: bool = False,
) -> HostPlan:
    """What a start will do. Paths of run.yaml are the host's; on this machine they may be relative."""
    spec = load_section("train", TrainSpec, config, overrides)
    if place.host == LOCAL:
        spec = with_absolute_paths(spec)
    wanted = Wanted(
        spec=spec,
        run_id=run_id,
        gpus=gpus,
        bundle_sha=bundle_sha(),
        git=git,
        secrets=_secrets(place),
        num_restarts=num_restarts,
        now_s=time.time(),
    )
    made = plan_start(place, wanted)
    if made.exists and is_dry_run:
        raise ConfigError(f"run {run_id} exists already on {place.host}, nothing would be started")
    return made


def plan_again(
    place: Place, run_id: str, gpus: tuple[str, ...], touch: tuple[str, ...], *, num_restarts: int, is_dry_run: bool
) -> HostPlan:
    """What a resume will do. Raises ConfigError if the run runs or has finished, or is protected and not named."""
    from dflashctl.cli.host_runs import find

    found = find(place, run_id)
    if not is_dry_run:
        gate(place, found, "train resume", touch)
    if found.record is None:
        raise ArtifactError(
            f"{found.state.run.record_path} on {place.host} cannot be read, so what to go on with is not known"
        )
    if found.state.is_active or found.state.state == "finished":
        raise ConfigError(
            f"run {run_id} on {place.host} is {found.state.state}, there is nothing to resume",
            hint=found.state.run.command("watch"),
        )
    return plan_resume(place, found.state.run, found.record, gpus, _secrets(place), num_restarts)


def begin(place: Place, plan: HostPlan, out: Output, touch: tuple[str, ...], *, is_detached: bool) -> None:
    """Carry a plan out; then watch the run, or, detached, only say that it is there."""
    # Told before anything is sent: a name that is neither the host's nor the run's means another machine.
    require_touch(
        "train start", host=place.host, is_host_protected=False, run=plan.run.run_id, given=_own(place, touch)
    )
    if not plan.has_environment:
        refuse_twins(place, "train start", touch)
    may_change = not place.spec.protected or place.host in touch
    try:
        launched = carry_out(plan, place, may_change_environment=may_change, say=out.say)
    except KeyboardInterrupt as error:
        raise Interrupted(
            f"whether run {plan.run.run_id} was started on {place.host} is not known: interrupted before it answered",
            hint=f"dflashctl train list{place.options or ''}",
        ) from error
    gpus = f", GPU {', '.join(plan.job.gpus)}" if plan.job.gpus else ""
    text = f"run {plan.run.run_id} started on {place.host}, supervisor {launched.token.pid}{gpus}"
    if not is_detached:
        from dflashctl.cli.host_runs import watch

        out.say(f"{text}; Ctrl-C ends the watching, not the run")
        watch(place, plan.run.run_id, out)
        return
    out.result(
        {
            "run": plan.run.run_id,
            "host": place.host,
            "folder": plan.run.folder,
            "pid": launched.token.pid,
            "attempt": launched.attempt,
            "gpus": plan.job.gpus,
            "port": launched.port,
        },
        f"{text}; {plan.run.command('watch')}",
    )


def _secrets(place: Place) -> tuple[tuple[str, str], ...]:
    return secret_values(place.spec.secrets, place.host, os.environ)


def _own(place: Place, touch: tuple[str, ...]) -> tuple[str, ...]:
    """Without other names of the same machine, which may be given too."""
    return tuple(name for name in touch if name not in place.protected_twins()) if touch else ()
