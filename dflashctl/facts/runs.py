"""How training runs do: from their own events, and whether their process is there. Changes nothing."""

import time
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from dflashctl.artifacts import RunRef
from dflashctl.errors import ArtifactError
from dflashctl.transport.base import Transport
from dflashctl.transport.process import Presence
from dflashctl.transport.tail import find_last_event, read_last_events
from dflashctl_remote.spec.events import CheckpointSaved, Failed, Finished, Started, Step, Stopped
from dflashctl_remote.spec.process import ProcessToken
from dflashctl_remote.spec.train import RunRecord

TAIL_BYTES = 512 * 1024
"""Some 700 steps; what happened before is looked for only if it must be, and then by its kind alone."""
START_S = 120.0
"""A start that was cut off before it wrote down its process is called ended after so long."""

State = Literal[
    "starting",
    "running",
    "finished",
    "stopped",
    "failed",
    "ended without a word",
    "lost to reboot",
    "elsewhere",
    "unreadable",
]


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


def state_of(run: RunRef, transport: Transport, *, now_s: float | None = None) -> RunState:
    """From the end of the run's events; a process that is gone without a last word is called so, never `failed`."""
    token = run.token()
    events = read_last_events(run.events_path, TAIL_BYTES)
    seen = _Seen()
    for event in events:
        seen.add(event)
    if events and seen.saved is None and any((run.folder / "checkpoints").glob("step-*")):
        # A long way back: checkpoints are rare where steps are many.
        seen.saved = find_last_event(run.events_path, "checkpoint")
    if events and seen.started is None and token is None:
        seen.started = find_last_event(run.events_path, "started")
    state, detail = _judge(run, transport, token, seen, time.time() if now_s is None else now_s)
    pid = token.pid if token else seen.started.pid if seen.started else None
    return RunState(run, state, seen.at_s, seen.step, seen.saved, pid, detail)


def state_if_readable(run: RunRef, transport: Transport, *, now_s: float | None = None) -> RunState:
    """For a list: one damaged run must not hide the others."""
    try:
        return state_of(run, transport, now_s=now_s)
    except (ArtifactError, OSError) as error:
        return RunState(run, "unreadable", None, None, None, None, str(error))


def is_running(run: RunRef, pid: int, transport: Transport) -> bool:
    """Whether the process that the run's events name is there; of a run without token."""
    return transport.is_alive(pid, str(run.record_path))


class _Seen:
    """The last of each kind."""

    def __init__(self) -> None:
        self.started: Started | None = None
        self.step: Step | None = None
        self.saved: CheckpointSaved | None = None
        self.end: Any = None
        self.at_s: float | None = None

    def add(self, event: Any) -> None:
        self.at_s = event.at_s
        match event:
            case Started():
                self.started, self.end = event, None
            case Step():
                self.step = event
            case CheckpointSaved():
                self.saved = event
            case Finished() | Stopped() | Failed():
                self.end = event


def _judge(
    run: RunRef, transport: Transport, token: ProcessToken | None, seen: _Seen, now_s: float
) -> tuple[State, str]:
    presence = None if token is None else transport.presence(token)
    if presence == "alive" and (seen.end is None or seen.end.at_s < run.token_path.stat().st_mtime):
        # The last word, if there is one, is that of the process before, which this one resumed.
        return ("starting" if seen.at_s is None else "running"), ""
    match seen.end:
        case Finished():
            return "finished", ""
        case Stopped() | Failed():
            return ("stopped", seen.end.reason) if isinstance(seen.end, Stopped) else ("failed", seen.end.message)
    if token is not None:
        return _without_a_word(token, presence)
    return _without_token(run, transport, seen, now_s)


def _without_token(run: RunRef, transport: Transport, seen: _Seen, now_s: float) -> tuple[State, str]:
    if seen.started is not None:
        if is_running(run, seen.started.pid, transport):
            return "running", ""
        return "ended without a word", f"process {seen.started.pid} is gone and wrote no last event"
    if not run.record_path.is_file() or now_s - run.record_path.stat().st_mtime < START_S:
        return "starting", ""
    return "ended without a word", "no process of it was ever seen"


def _without_a_word(token: ProcessToken, presence: Presence | None) -> tuple[State, str]:
    if presence == "another boot":
        return "lost to reboot", f"the machine was started anew, and process {token.pid} is gone with it"
    if presence == "another namespace":
        return "elsewhere", f"process {token.pid} is of another PID namespace than this one"
    return "ended without a word", f"process {token.pid} is gone and wrote no last event"
