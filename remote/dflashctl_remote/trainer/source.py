"""Where a drafter's batches come from: a line of stages in threads, or the same work done in turns."""

import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Protocol, Self

import torch

from dflashctl_remote.data.loader import BatchPlan
from dflashctl_remote.drafter.anchors import sample_anchors
from dflashctl_remote.drafter.scored import scored_slots
from dflashctl_remote.spec.events import Queue, StageLoad
from dflashctl_remote.spec.train import TrainSpec
from dflashctl_remote.target.load import Target
from dflashctl_remote.trainer.batch import HiddenBatch, RowBatch
from dflashctl_remote.trainer.order import Order
from dflashctl_remote.trainer.passage import Passage
from dflashctl_remote.trainer.queues import BoundedQueue, Closed, ReorderBuffer
from dflashctl_remote.trainer.stages import Line, Load

Pause = Callable[[str, int], None]
"""Called by a stage before each batch with its name and the batch; tests make stages slow with it."""


class Work:
    """What the stages do, without when and where: pure functions of a batch's number."""

    def __init__(
        self,
        spec: TrainSpec,
        plan: BatchPlan,
        order: Order,
        *,
        num_anchors: int,
        tap_layers: tuple[int, ...],
        block_size: int,
    ) -> None:
        self.order = order
        self._spec = spec
        self._plan = plan
        self._num_anchors = num_anchors
        self._tap_layers = tap_layers
        self._block_size = block_size

    def load(self, place: int, batch: int) -> RowBatch:
        row = self._plan.row(batch)
        anchors = sample_anchors(row, num_anchors=self._num_anchors, seed=self._spec.seed, batch=batch)
        return RowBatch(place, batch, self._plan.epoch_of(batch + 1), row, anchors)

    @torch.no_grad()
    def see(self, target: Target, loaded: RowBatch) -> HiddenBatch:
        """The target's states of the row, and the labels of the slots that are scored."""
        states = target.states(loaded.row, self._tap_layers)
        scored = scored_slots(
            target, loaded.row, states.final_TE, loaded.anchors, self._spec.objective, block_size=self._block_size
        )
        return HiddenBatch(loaded.place, loaded.batch, loaded.epoch, loaded.row, loaded.anchors, states.taps_TF, scored)


class Source(Protocol):
    def next(self) -> HiddenBatch:
        """The next batch of this process, in rising order. Raises what ended a stage."""
        ...

    def report(self) -> tuple[tuple[Queue, ...], tuple[StageLoad, ...]]:
        """Queues as they are, and what the stages did since the last report."""
        ...

    @property
    def drafting(self) -> Load: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class InTurns:
    """One batch in flight: nothing runs beside anything."""

    def __init__(self, work: Work, target: Target, first_batch: int) -> None:
        self.drafting = Load("drafter")
        self._work = work
        self._target = target
        self._batches = enumerate(work.order.batches_from(first_batch))

    def next(self) -> HiddenBatch:
        return self._work.see(self._target, self._work.load(*next(self._batches)))

    def report(self) -> tuple[tuple[Queue, ...], tuple[StageLoad, ...]]:
        return (), ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class InLine:
    """Loader -> targets -> buffer in threads; the drafters take from its end. No stage waits for a step's end."""

    def __init__(
        self,
        work: Work,
        targets: tuple[Target, ...],
        passage: Passage,
        first_batch: int,
        *,
        rows_ahead: int,
        states_ahead: int,
        num_threads: int | None,
        pause: Pause = lambda stage, batch: None,
    ) -> None:
        self.drafting = Load("drafter")
        self._work = work
        self._targets = targets
        self._passage = passage
        self._first_batch = first_batch
        self._num_threads = num_threads
        self._pause = pause
        self._rows: BoundedQueue[RowBatch] = BoundedQueue(rows_ahead)
        # Beside those that wait, each target stage has one in hand.
        self._states: ReorderBuffer[HiddenBatch] = ReorderBuffer(states_ahead)
        self._line = Line()
        self._reported_s = time.perf_counter()

    def __enter__(self) -> Self:
        self._line.keep(self._rows, self._states, self._passage)
        self._line.start("loader", self._load)
        for number, target in enumerate(self._targets):
            name = "target" if len(self._targets) == 1 else f"target {number}"
            self._line.start(name, lambda load, target=target: self._see(load, target))  # type: ignore[misc]
        self._line.loads.append(self.drafting)
        self._reported_s = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.close()

    def next(self) -> HiddenBatch:
        try:
            with self.drafting.starved():
                waiting = self._states.get()
        except Closed:
            self._line.raise_if_broken()
            raise
        return replace(waiting, **self._passage.receive(waiting.place, waiting.batch, waiting.taps_TF, waiting.scored))

    def report(self) -> tuple[tuple[Queue, ...], tuple[StageLoad, ...]]:
        now_s = time.perf_counter()
        since_s, self._reported_s = now_s - self._reported_s, now_s
        queues = (
            Queue(name="rows", depth=self._rows.depth, capacity=self._rows.capacity),
            Queue(name="hidden states", depth=self._states.depth, capacity=self._states.capacity),
        )
        return queues, self._line.taken(since_s)

    def _load(self, load: Load) -> None:
        for place, batch in enumerate(self._work.order.batches_from(self._first_batch)):
            with load.busy():
                self._pause(load.name, batch)
                loaded = self._work.load(place, batch)
            with load.held_up():
                self._rows.put(loaded)

    def _see(self, load: Load, target: Target) -> None:
        # Of this thread: torch would otherwise give it a number of its own.
        if self._num_threads is not None:
            torch.set_num_threads(self._num_threads)
        with self._passage.sending(target.device):
            while True:
                with load.starved():
                    loaded = self._rows.get()
                with load.busy():
                    self._pause(load.name, loaded.batch)
                    seen = self._work.see(target, loaded)
                    sent = replace(seen, **self._passage.send(seen.place, seen.batch, seen.taps_TF, seen.scored))
                with load.held_up():
                    self._states.put(sent.place, sent)
