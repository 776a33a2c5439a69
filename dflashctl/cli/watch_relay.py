"""Following a run: its newest checkpoint is brought over, again and again."""

import time
from pathlib import Path

from dflashctl.cli.output import Output
from dflashctl.cli.run_relay import Relay
from dflashctl.errors import ArtifactError, HostUnreachable, Interrupted, JobFailed
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
    ends = relay.ends(one, other)
    brought: list[dict[str, object]] = []
    num_silent, last_step = 0, -1
    try:
        while True:
            try:
                run, newest, is_over = _newest(ends[0], run)
                num_silent = 0
            except HostUnreachable as error:
                num_silent += 1
                if num_silent > MOST_SILENT_LOOKS:
                    raise
                out.say(f"{error.message}; looking again in {every_s:g} s")
                time.sleep(every_s)
                continue
            if newest > last_step and run is not None:
                job = CheckpointJob(
                    one, other, ends[0].workdir, ends[1].workdir, run, str(newest), with_state, False, encode, num_lanes
                )
                try:
                    moved = relay.carry_out(job, ends, f"{run}@{newest}")
                except ArtifactError as error:
                    # Pruned before it could be pinned: a newer one is there by now.
                    out.say(f"{error.message}; a newer one is looked for")
                    last_step = newest
                    continue
                last_step = newest
                text = (
                    f"{run}@{newest} is on {other} already"
                    if moved is None
                    else moved_text(f"{run}@{newest}", other, moved)
                )
                out.say(text)
                if moved is not None:
                    brought.append({"checkpoint": f"{run}@{newest}", "dest": job.dest, "sent_bytes": moved.sent_bytes})
                    _hook(out, then, run, newest, other, job.dest)
                _prune(out, ends[1], run, keep, newest)
                continue
            if is_over:
                out.result({"run": run, "brought": brought}, f"run {run} has ended; its last checkpoint is on {other}")
                return
            time.sleep(every_s)
    except KeyboardInterrupt as error:
        raise Interrupted("watching was ended; what was brought over stays", hint="dflashctl relay list") from error


def _newest(end: End, run: str | None) -> tuple[str | None, int, bool]:
    """The run's name, its newest step (-1: none yet) and whether the run has ended."""
    agent = end.start("chief")
    try:
        found = find(agent, end.workdir, run)
        name = found.run
        usable = [one.step for one in found.checkpoints if one.manifest is not None]
        is_over = False if name is None else bool(agent.ask("ended", {"workdir": end.workdir, "run": name}))
    except AgentRefused as refused:
        raise refused.as_error() from refused
    finally:
        agent.close()
    return name, usable[-1] if usable else -1, is_over


def _prune(out: Output, end: End, run: str, keep: int, step: int) -> None:
    if not keep:
        return
    agent: Agent = end.start("keeper")
    try:
        removed = agent.ask("prune", {"workdir": end.workdir, "run": run, "keep": keep, "spare": [f"step-{step:08d}"]})
    finally:
        agent.close()
    if removed:
        out.say(f"{end.host}: {', '.join(removed)} of {run} removed, the newest {keep} stay")


def _hook(out: Output, then: str | None, run: str, step: int, host: str, dest: str) -> None:
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
        raise JobFailed(f"the command after {run}@{step} ended with exit code {code}: {then}", host="local")
    out.say(f"the command after {run}@{step} ended well")
