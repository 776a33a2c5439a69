"""What a training run's state is, judged from what was seen of it. Pure: where it was seen is not known here."""

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from dflashctl.artifacts import RunRef
from dflashctl.transport.process import Presence
from dflashctl_remote.spec.events import CheckpointSaved, Failed, Finished, Started, Step, Stopped
from dflashctl_remote.spec.process import ExitRecord, ProcessToken

START_S = 120.0
"""A start that was cut off before it wrote down its process is called ended after so long."""

State = Literal[
    "starting",
    "running",
    "finished",
    "stopped",
    "failed",
    "killed",
    "ended without a word",
    "lost to reboot",
    "elsewhere",
    "unreadable",
    "unreachable",
]
ACTIVE: tuple[State, ...] = ("starting", "running")


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
    num_restarts: int = 0

    @property
    def is_active(self) -> bool:
        return self.state in ACTIVE


@dataclass(frozen=True)
class Seen:
    """A run's processes, as its host knows them. Times are the host's."""

    token: ProcessToken | None
    """Of the process that stands for the run: its supervisor, else the job itself."""
    presence: Presence | None
    """Of that process; None if there is no token."""
    token_at_s: float | None
    exit: ExitRecord | None = None
    living: tuple[int, ...] = ()
    """Processes that carry the run's marker, looked for where the token's process is gone."""
    record_at_s: float | None = None
    """When run.json was written."""


class Told:
    """The last of each kind of a run's events."""

    def __init__(self, events: Iterable[Any] = ()) -> None:
        self.started: Started | None = None
        self.step: Step | None = None
        self.saved: CheckpointSaved | None = None
        self.end: Any = None
        self.at_s: float | None = None
        for event in events:
            self.add(event)

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


def judge(run: RunRef, told: Told, seen: Seen, now_s: float) -> RunState:
    """`now_s` by the host's clock. A process that is gone without a last word is called so, never `failed`."""
    state, detail = _state(told, seen, now_s)
    pid = seen.token.pid if seen.token else told.started.pid if told.started else None
    restarts = seen.exit.restarts if seen.exit else 0
    return RunState(run, state, told.at_s, told.step, told.saved, pid, detail, restarts)


def _state(told: Told, seen: Seen, now_s: float) -> tuple[State, str]:
    active: State = "starting" if told.at_s is None else "running"
    # The last word, if there is one, may be that of the process before, which this one resumed.
    is_end_of_this = told.end is not None and (seen.token_at_s is None or told.end.at_s >= seen.token_at_s)
    if seen.presence == "alive" and seen.exit is None and not is_end_of_this:
        return active, ""
    if seen.exit is None and seen.living and not is_end_of_this:
        pids = ", ".join(map(str, seen.living))
        return active, f"its supervisor is gone; process {pids} goes on without"
    if is_end_of_this:
        return _last_word(told.end)
    if seen.exit is not None:
        return _ended(seen.exit)
    if seen.token is not None:
        return _without_a_word(seen.token, seen.presence)
    return _without_token(told, seen, now_s)


def _last_word(event: Finished | Stopped | Failed) -> tuple[State, str]:
    match event:
        case Stopped(reason=reason):
            return "stopped", reason
        case Failed(message=message):
            return "failed", message
    return "finished", ""


def _without_token(told: Told, seen: Seen, now_s: float) -> tuple[State, str]:
    if told.started is not None:
        return "ended without a word", f"process {told.started.pid} is gone and wrote no last event"
    if seen.record_at_s is None or now_s - seen.record_at_s < START_S:
        return "starting", ""
    return "ended without a word", "no process of it was ever seen"


def _ended(end: ExitRecord) -> tuple[State, str]:
    """How a job ended that wrote no last event."""
    if end.code == 0:
        return ("stopped", "it ended when asked to") if end.stop else ("finished", "")
    if end.signal is None:
        return "failed", f"it ended with exit code {end.code} and wrote no last event"
    how = f"ended by signal {end.signal} ({_signal_name(end.signal)})"
    if end.stop:
        return "stopped", f"{how} when asked to stop"
    if end.oom_kills:
        how += "; the kernel's out-of-memory killer was at work"
    elif end.signal == signal.SIGKILL:
        how += ": by somebody, or for want of memory"
    return "killed", how


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _without_a_word(token: ProcessToken, presence: Presence | None) -> tuple[State, str]:
    if presence == "another boot":
        return "lost to reboot", f"the machine or its container was started anew, and process {token.pid} is gone with it"
    if presence == "another namespace":
        return "elsewhere", f"process {token.pid} is of another PID namespace than this one"
    return "ended without a word", f"process {token.pid} is gone and wrote no last event"
