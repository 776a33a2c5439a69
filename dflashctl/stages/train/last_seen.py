"""What a host's runs were when it last answered, kept where you type: a host that does not answer has not failed."""

import re
import time
from pathlib import Path

from pydantic import ValidationError

from dflashctl.artifacts import RunRef
from dflashctl.facts.host_runs import HostRuns
from dflashctl.facts.run_state import RunState, State
from dflashctl_remote.spec.base import Spec
from dflashctl_remote.spec.events import CheckpointSaved, Step, Validated
from dflashctl_remote.spec.manifest import write_atomically


class SeenRun(Spec):
    run_id: str
    folder: str
    state: State
    last_event_at_s: float | None
    last_step: Step | None
    last_checkpoint: CheckpointSaved | None
    last_validated: Validated | None = None


class LastSeen(Spec):
    host: str
    workdir: str
    at_s: float
    """Unix time of this machine."""
    runs: tuple[SeenRun, ...]


def remember(folder: Path, asked: str, found: HostRuns, at_s: float) -> None:
    """`asked`: the work folder as it was asked for, which a host that does not answer cannot make absolute."""
    runs = tuple(
        SeenRun(
            run_id=state.run.run_id,
            folder=str(state.run.folder),
            state=state.state,
            last_event_at_s=state.last_event_at_s,
            last_step=state.last_step,
            last_checkpoint=state.last_checkpoint,
            last_validated=state.last_validated,
        )
        for state in found.states
    )
    path = _path(folder, found.host)
    path.parent.mkdir(parents=True, exist_ok=True)
    seen = LastSeen(host=found.host, workdir=asked, at_s=at_s, runs=runs)
    write_atomically(path, seen.model_dump_json() + "\n")


def recall(folder: Path, host: str, asked: str) -> tuple[RunState, ...]:
    """The runs as they were, each `unreachable`; none if the host was never seen, or with another work folder."""
    try:
        seen = LastSeen.model_validate_json(_path(folder, host).read_bytes())
    except (OSError, ValidationError):
        return ()
    if seen.workdir != asked:
        return ()
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seen.at_s))
    return tuple(
        RunState(
            RunRef(run.run_id, Path(run.folder), host),
            "unreachable",
            run.last_event_at_s,
            run.last_step,
            run.last_checkpoint,
            None,
            f"last seen {when}, was {run.state}",
            last_validated=run.last_validated,
        )
        for run in seen.runs
    )


def _path(folder: Path, host: str) -> Path:
    return folder / "seen" / (re.sub(r"[^A-Za-z0-9._-]", "_", host) + ".json")
