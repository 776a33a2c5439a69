"""Following a run: its newest checkpoint is brought over, again and again."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dflashctl.cli.output import Output
from dflashctl.cli.run_relay import Relay
from dflashctl.errors import ArtifactError, ConfigError, HostUnreachable, Interrupted, JobFailed
from dflashctl.operations.relay.agent import Agent, AgentRefused, End
from dflashctl.stages.relay.checkpoint import CheckpointJob, find
from dflashctl.transport.hook import run_hook
from dflashctl.views.relay import moved_text

MOST_SILENT_LOOKS = 20
"""In a row without an answer: then whoever watches is told."""


def watch(
    hosts: Path | None,
    out: Output,
    touch: tuple[str, ...],
    encode: str,
    num_lanes: int | None,
    run: str | None,
    source: str | None,
    target: str | None,
    every_s: float,
    keep: int,
    then: str | None,
    *,
    with_state: bool,
) -> None:
    """Raises what a relay raises, Interrupted after Ctrl-C."""
    relay = Relay(hosts, out, touch, encode, num_lanes)
    section = relay.inventory.content.relay
    one = relay.host(source, section.source, "--from", "source")
    other = relay.host(target, section.destination, "--to", "destination")
    if one == other:
        raise ConfigError(f"relay: {one} is source and destination at once")
    if keep:
        relay.gate(other, True, "relay watch --keep")
    try:
        _Watch(relay, (one, other), relay.ends(one, other), every_s, keep, then, with_state=with_state).follow(run)
    except (KeyboardInterrupt, Interrupted) as error:
        raise Interrupted(
            "watching was ended; what was brought over stays, and of what was on its way each chunk that had come",
            hint="the same command goes on with it",
        ) from error


@dataclass(frozen=True)
class _Seen:
    run: str | None
    is_there: bool
    """The run's folder."""
    step: int
    """Of its newest complete checkpoint; -1: none yet."""
    has_ended: bool


class _Watch:
    def __init__(
        self,
        relay: Relay,
        hosts: tuple[str, str],
        ends: tuple[End, End],
        every_s: float,
        keep: int,
        then: str | None,
        *,
        with_state: bool,
    ) -> None:
        self._relay, self._hosts, self._ends = relay, hosts, ends
        self._every_s, self._keep, self._then, self._with_state = every_s, keep, then, with_state
        self._say = relay.out.say
        self._brought: list[dict[str, object]] = []
        self._last_step = -1
        self._failed: ArtifactError | None = None
        """Of the newest checkpoint, if it could not be brought over."""
        self._num_silent = 0

    def follow(self, run: str | None) -> None:
        is_told = False
        while True:
            try:
                seen = _look(self._ends[0], run)
                if run is not None and not seen.is_there and not is_told:
                    raise ConfigError(
                        f"there is no run {run} on {self._hosts[0]}",
                        hint=f"dflashctl train list --host {self._hosts[0]}",
                    )
                run = seen.run
                is_new = run is not None and seen.step > self._last_step
                if is_new:
                    self._bring(str(run), seen.step)
                self._num_silent = 0
            except HostUnreachable as error:
                self._wait_for(error)
                continue
            if is_new:
                continue
            if seen.has_ended:
                self._end(str(run), seen.step)
                return
            if not is_told and seen.step < 0:
                self._say(
                    f"{run or 'no run'} on {self._hosts[0]} has no complete checkpoint yet; waiting for the first"
                )
            is_told = True
            time.sleep(self._every_s)

    def _wait_for(self, error: HostUnreachable) -> None:
        self._num_silent += 1
        if self._num_silent > MOST_SILENT_LOOKS:
            raise error
        self._say(f"{error.message}; looking again in {self._every_s:g} s")
        time.sleep(self._every_s)

    def _bring(self, run: str, step: int) -> None:
        """One that is pruned before it could be pinned has been overtaken: a newer one is there by then."""
        name, (source, target) = f"{run}@{step}", self._hosts
        job = CheckpointJob(
            source,
            target,
            self._ends[0].workdir,
            self._ends[1].workdir,
            run,
            str(step),
            self._with_state,
            False,
            self._relay.encode,
            self._relay.num_lanes,
        )
        try:
            moved = self._relay.carry_out(job, self._ends, name)
        except (ArtifactError, ConfigError) as error:
            if not isinstance(error, ArtifactError) and job.chosen is not None:
                raise
            self._say(f"{error.message}; a newer one is looked for")
            self._last_step = step
            self._failed = error if isinstance(error, ArtifactError) else ArtifactError(error.message, hint=error.hint)
            return
        self._last_step, self._failed = step, None
        if moved is None:
            self._say(f"{name} is on {target} already")
        else:
            self._say(moved_text(name, target, moved))
            self._brought.append({"checkpoint": name, "dest": job.dest, "sent_bytes": moved.sent_bytes})
            _hook(self._say, self._then, run, step, target, job.dest)
        _prune(self._say, self._ends[1], run, self._keep, step)

    def _end(self, run: str, step: int) -> None:
        if step < 0:
            raise ArtifactError(f"run {run} on {self._hosts[0]} has ended without a complete checkpoint")
        if self._failed is not None:
            raise self._failed
        text = f"run {run} has ended; its last checkpoint is on {self._hosts[1]}"
        self._relay.out.result({"run": run, "brought": self._brought}, text)


def _look(end: End, run: str | None) -> _Seen:
    """Raises ConfigError, ArtifactError, JobFailed, HostUnreachable."""
    agent = end.start("chief")
    try:
        found = find(agent, end.workdir, run)
        has_ended = False
        if found.run is not None and found.is_run_there:
            has_ended = bool(agent.ask("ended", {"workdir": end.workdir, "run": found.run}))
        if has_ended:
            # Its last one may have come between the two questions.
            found = find(agent, end.workdir, found.run)
    except AgentRefused as refused:
        raise refused.as_error() from refused
    finally:
        agent.close()
    usable = [one.step for one in found.checkpoints if one.manifest is not None]
    return _Seen(found.run, found.is_run_there, usable[-1] if usable else -1, has_ended)


def _prune(say: Callable[[str], None], end: End, run: str, keep: int, step: int) -> None:
    if not keep:
        return
    agent: Agent = end.start("keeper")
    try:
        removed = agent.ask("prune", {"workdir": end.workdir, "run": run, "keep": keep, "spare": [f"step-{step:08d}"]})
    except AgentRefused as refused:
        raise refused.as_error() from refused
    finally:
        agent.close()
    if removed:
        say(f"{end.host}: {', '.join(removed)} of {run} removed, the newest {keep} stay")


def _hook(say: Callable[[str], None], then: str | None, run: str, step: int, host: str, dest: str) -> None:
    if then is None:
        return
    about = {
        "DFLASHCTL_RUN": run,
        "DFLASHCTL_STEP": str(step),
        "DFLASHCTL_HOST": host,
        "DFLASHCTL_CHECKPOINT": dest,
    }
    code = run_hook(then, about)
    if code:
        raise JobFailed(
            f"the command after {run}@{step} ended with exit code {code}: {then}",
            host="local",
            hint=f"the checkpoint itself is good, in {dest} on {host}; the next one runs the command again",
        )
    say(f"the command after {run}@{step} ended well")
