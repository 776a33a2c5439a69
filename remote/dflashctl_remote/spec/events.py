"""What a job on a host says of itself: one JSON object a line in events.jsonl. Nobody parses log text."""

import os
import time
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from dflashctl_remote.spec.base import Spec
from dflashctl_remote.spec.parity import Parity

RANK_LOST = "RankLost"
"""`Failed.error` of a process that met the loss of another one of its run."""


class Event(Spec):
    at_s: float = Field(default_factory=time.time)
    """Unix time."""


class Started(Event):
    kind: Literal["started"] = "started"
    job: str
    """train, tokenize, generate, evaluate or serve."""
    pid: int
    device: str
    about: dict[str, Any] = Field(default_factory=dict)


class Progress(Event):
    kind: Literal["progress"] = "progress"
    what: str
    done: int
    total: int
    unit: str


class Queue(Spec):
    """A bounded queue between two stages of the trainer."""

    name: str
    """What waits in it, for example `hidden states`."""
    depth: int
    capacity: int


class StageLoad(Spec):
    """What the stages of one kind did since the event before, as shares of that time."""

    name: str
    """loader, target, drafter."""
    count: int
    """Stages of this kind, over which the shares are means."""
    busy: float
    starved: float
    """Waiting for the stage before it."""
    held_up: float
    """Waiting for room in the queue behind it."""


class Step(Event):
    """One optimizer step."""

    kind: Literal["step"] = "step"
    step: int
    """Counts from 1; the state after this many optimizer steps."""
    num_steps: int
    batch: int
    """Batches consumed since the start of the run: the data cursor."""
    epoch: float
    loss: float
    """Weighted cross-entropy: sum(w * ce) / sum(w), nats."""
    accuracy: float
    """Share of scored slots whose arg-max is the label, unweighted."""
    accuracy_by_slot: tuple[float, ...]
    """For slots 1..K-1; teacher-forced, an input to estimates, never an acceptance."""
    learning_rate: float
    grad_norm: float
    num_anchors: int
    num_scored_slots: int
    context_tokens_per_s: float
    block_ratio: float
    """r: block tokens per context token; throughput means nothing without it."""
    peak_memory_bytes: int
    queues: tuple[Queue, ...] = ()
    """Empty where the stages take turns."""
    stages: tuple[StageLoad, ...] = ()
    limiting_stage: str | None = None
    """The busiest: a faster one would make the run faster."""


class Validated(Event):
    """A run's drafter on held-out documents, after `step`: the same rows, anchors and prompts each time."""

    kind: Literal["validated"] = "validated"
    step: int
    loss: float
    """Hard cross-entropy against the target's own arg-max, slots weighted by exp(-(k-1)/gamma) with the block size's
    gamma, nats; whatever the run's objective is."""
    accuracy_by_slot: tuple[float, ...]
    """For slots 1..K-1, teacher-forced: an input to estimates, never an acceptance."""
    num_rows: int
    tau: float | None
    """Measured by free-running greedy decoding, bonus included; None: no verify step was made."""
    tau_low: float | None
    """95 % interval by prompt; None of too few prompts."""
    tau_high: float | None
    tau_without_repeats: float | None
    """Steps that emitted a token of a repeated 16-gram left out."""
    tau_of_lookup: float | None
    """What copying after the last bigram would have scored on the same answers."""
    repeated_token_share: float
    num_prompts: int
    num_verify_steps: int
    parity: Parity
    seconds_s: float


class CheckpointSaved(Event):
    kind: Literal["checkpoint"] = "checkpoint"
    step: int
    path: str
    size_bytes: int
    seconds_s: float


class Notice(Event):
    """Something a reader should know that is not an error: a choice made, rows skipped."""

    kind: Literal["notice"] = "notice"
    message: str


class Serving(Event):
    """The server answers requests from now on."""

    kind: Literal["serving"] = "serving"
    address: str
    port: int
    model: str
    num_draft_tokens: int
    """0: no drafter."""


class Finished(Event):
    kind: Literal["finished"] = "finished"
    about: dict[str, Any] = Field(default_factory=dict)


class Stopped(Event):
    """Ended early on request; the state on disk resumes."""

    kind: Literal["stopped"] = "stopped"
    reason: str
    checkpoint: str | None = None


class Failed(Event):
    kind: Literal["failed"] = "failed"
    error: str
    """Name of the exception."""
    message: str
    hint: str = ""
    exit_code: int
    traceback: str = ""


AnyEvent = Annotated[
    Started | Progress | Step | Validated | CheckpointSaved | Notice | Serving | Finished | Stopped | Failed,
    Field(discriminator="kind"),
]
_ADAPTER: TypeAdapter[Any] = TypeAdapter(AnyEvent)


def parse_event(line: str | bytes) -> Any:
    """One line of events.jsonl as its event; raises pydantic.ValidationError."""
    return _ADAPTER.validate_json(line)


class EventLog:
    """Appends events to a file, one write and flush an event, so that a reader never sees half a line for long.

    Half a line that a killed process left is turned to blanks. Readers skip blank lines, and offsets into the
    file stay true.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            _blank_half_line(path)
        self._file = path.open("a", encoding="utf-8")

    def emit(self, event: Event) -> None:
        self._file.write(event.model_dump_json() + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class LastWords(EventLog):
    """Of a process that trains beside the one whose events these are: only how it failed is added, and that another
    was lost only where that one said nothing itself."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("a", encoding="utf-8")
        self._began = path.stat().st_size

    def emit(self, event: Event) -> None:
        if not isinstance(event, Failed):
            return
        if event.error != RANK_LOST or not _tells_of_failure(self._path, self._began):
            super().emit(event)


class AmongOthers(EventLog):
    """Of the first of several processes: that one was lost is not told after what that one said itself."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._path = path
        self._began = path.stat().st_size

    def emit(self, event: Event) -> None:
        if not (isinstance(event, Failed) and event.error == RANK_LOST and _tells_of_failure(self._path, self._began)):
            super().emit(event)


def _tells_of_failure(path: Path, began: int) -> bool:
    with path.open("rb") as file:
        file.seek(began)
        return any(b'"kind":"failed"' in line for line in file)


def _blank_half_line(path: Path) -> None:
    content = path.read_bytes()
    half = len(content) - (content.rfind(b"\n") + 1)
    if half:
        with path.open("r+b") as file:
            file.seek(-half, os.SEEK_END)
            file.write(b" " * half + b"\n")
