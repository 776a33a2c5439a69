"""What a training run's state is, judged from what was seen of it. Pure: where it was seen is not known here."""

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dflashctl.artifacts import RunRef
from dflashctl.transport.process import Presence
from dflashctl.transport.tail import parse_lines
from dflashctl_remote.spec.events import CheckpointSaved, Failed, Finished, Started, Step, Stopped, Validated
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
    last_validated: Validated | None = None

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
    is_supervised: bool = False
    """The token is a supervisor's, which outlives its job."""
    has_job: bool = True
    """False: the supervisor lives, and its job does not."""
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
        self.validated: Validated | None = None
        self.end: Any = None
        self.at_s: float | None = None
        self.knows_attempt = False
        """What was told before this attempt is known apart, whatever the clocks say."""
        self.has_spoken = False
        """This attempt, if it is known apart; else any."""
        for event in events:
            self.add(event)

    def begin_attempt(self) -> None:
        """All that was added so far is of those before."""
        self.knows_attempt, self.has_spoken, self.end = True, False, None

    def add(self, event: Any) -> None:
        self.at_s, self.has_spoken = event.at_s, True
        match event:
            case Started():
                self.started, self.end = event, None
            case Step():
                self.step = event
            case CheckpointSaved():
                self.saved = event
            case Validated():
                self.validated = event
            case Finished() | Stopped() | Failed():
                self.end = event


def told_in(offset: int, content: bytes, events_at: int | None, path: Path) -> Told:
    """From whole lines of an events file that begin at an offset; `events_at`: where the newest attempt's begin.

    Raises ArtifactError for a line that is no event.
    """
    if events_at is None:
        return Told(parse_lines(content, path))
    border = max(0, events_at - offset)
    told = Told(parse_lines(content[:border], path))
    told.begin_attempt()
    for event in parse_lines(content[border:], path):
        told.add(event)
    return told


def judge(run: RunRef, told: Told, seen: Seen, now_s: float) -> RunState:
    """`now_s` by the host's clock. A process that is gone without a last word is called so, never `failed`."""
    state, detail = _state(told, seen, now_s)
    pid = seen.token.pid if seen.token else told.started.pid if told.started else None
    restarts = seen.exit.restarts if seen.exit else 0
    return RunState(run, state, told.at_s, told.step, told.saved, pid, detail, restarts, told.validated)


def _state(told: Told, seen: Seen, now_s: float) -> tuple[State, str]:
    active: State = "running" if told.has_spoken else "starting"
    # The last word, if there is one, may be that of the process before, which this one resumed.
    is_end_of_this = told.end is not None and (
        told.knows_attempt or seen.token_at_s is None or told.end.at_s >= seen.token_at_s
    )
    if seen.presence == "alive" and seen.exit is None:
        if not is_end_of_this:
            return active, "" if seen.has_job else "its job is not there; its supervisor is at work"
        if seen.is_supervised:
            said, why = _last_word(told.end)
            return active, f"its job {said}{f' ({why})' if why else ''}, and its supervisor is at work"
    if seen.exit is None and seen.living and not is_end_of_this:
        pids = ", ".join(map(str, seen.living))
        return active, f"its supervisor is gone; process {pids} goes on without"
    if is_end_of_this:
        return _last_word(told.end)
    return _without_last_word(told, seen, now_s)


def _without_last_word(told: Told, seen: Seen, now_s: float) -> tuple[State, str]:
    if seen.exit is not None:
        return _ended(seen.exit)
    if seen.token is not None:
        return _without_process(seen.token, seen.presence)
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
    if end.code is None:
        return "stopped", "it was asked to stop; its supervisor was gone, so how it ended is not known"
    if end.signal is None:
        return "failed", f"it ended with exit code {end.code} and wrote no last event"
    how = f"ended by signal {end.signal} ({_signal_name(end.signal)})"
    if end.killed:
        return "stopped", f"{how}: it was asked to stop, and killed after its grace"
    if end.stop:
        return "stopped", f"{how}, and asked to stop"
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


def _without_process(token: ProcessToken, presence: Presence | None) -> tuple[State, str]:
    if presence == "another boot":
        return (
            "lost to reboot",
            f"the machine or its container was started anew, and process {token.pid} is gone with it",
        )
    if presence == "another namespace":
        return "elsewhere", f"process {token.pid} is of another PID namespace than this one"
    return "ended without a word", f"process {token.pid} is gone and wrote no last event"
