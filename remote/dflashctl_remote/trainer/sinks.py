"""Sinks: TensorBoard and Weights & Biases, fed with the events that events.jsonl gets.

events.jsonl is written first and is what everything else reads. A sink works in a thread of its own behind a bounded
queue: one that is slow costs figures, never time, and one that fails is told of once and closed.
"""

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from dflashctl_remote.spec.events import Event, Notice
from dflashctl_remote.spec.sinks import SinksSpec, WandbMode

CAPACITY = 1024
"""Events that may wait for a sink."""
CLOSE_LIMIT_S = 30.0
"""How long the end of a run waits for a sink to write what it has."""

_NOT_FIGURES = frozenset({"at_s", "kind", "step"})


class Emitter(Protocol):
    """Takes events; `EventLog` is one."""

    def emit(self, event: Event) -> None: ...


class Sink(Protocol):
    """Where figures go. Any exception closes it for the rest of the run."""

    name: str

    def write(self, step: int, figures: dict[str, float], at_s: float) -> None: ...

    def close(self) -> None: ...


class EventsWithSinks:
    """An emitter that writes each event to `log`, and its figures to the sinks. Leave it through `close`.

    To be used from one thread, like the log itself.
    """

    def __init__(self, log: Emitter, sinks: Sequence[Sink], *, close_limit_s: float = CLOSE_LIMIT_S) -> None:
        self._log = log
        self._close_limit_s = close_limit_s
        self._workers = [_Worker(sink) for sink in sinks]

    def emit(self, event: Event) -> None:
        self._log.emit(event)
        for worker in self._workers:
            worker.offer(event)
        self._tell()

    def close(self) -> None:
        """Let each sink finish, for a limited time, and tell what was lost."""
        for worker in self._workers:
            worker.finish(self._close_limit_s)
        self._tell()

    def __enter__(self) -> "EventsWithSinks":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _tell(self) -> None:
        for worker in self._workers:
            for message in worker.take_messages():
                self._log.emit(Notice(message=message))


def open_sinks(spec: SinksSpec, run_dir: Path, run_id: str, about: dict[str, Any], log: Emitter) -> EventsWithSinks:
    """The sinks of `spec`; one that can't be opened is told of as a Notice and left out.

    about: the resolved settings of the run, for sinks that show them.
    """
    makers: list[tuple[str, Callable[[], Sink]]] = []
    if spec.tensorboard:
        makers.append(("tensorboard", lambda: TensorBoardSink(run_dir / "tensorboard")))
    if spec.wandb is not None:
        mode = spec.wandb
        makers.append(("wandb", lambda: WandbSink(run_dir, run_id, about, mode=mode, project=spec.wandb_project)))
    sinks = []
    for name, make in makers:
        try:
            sinks.append(make())
        except ImportError as error:
            log.emit(Notice(message=f"no {name}: {error}; install dflashctl[{name}] in the run's environment"))
        except Exception as error:  # noqa: BLE001 - whatever a service of others raises, the run goes on without it
            log.emit(Notice(message=f"no {name}: it could not be opened: {_in_a_line(error)}"))
    return EventsWithSinks(log, sinks)


def figures(event: Event) -> dict[str, float]:
    """The numbers of an event, named by where they stand: step/loss, step/accuracy_by_slot/3, step/queues/rows/depth.

    Entries of a tuple are named by their `name` field, or counted from 1. Texts and flags are no figures.
    """
    kind = str(getattr(event, "kind", "event"))
    fields = event.model_dump(exclude=set(_NOT_FIGURES))
    return {f"{kind}/{name}": value for name, value in _numbers(fields)}


class TensorBoardSink:
    """Event files that `tensorboard --logdir` shows."""

    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        """Raises ImportError without the tensorboard package."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def write(self, step: int, figures: dict[str, float], at_s: float) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step, walltime=at_s)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbSink:
    """A run of Weights & Biases with the id of ours, so that a resumed run goes on in it.

    It gets figures and settings: no code, no console, no description of the machine.
    """

    name = "wandb"

    def __init__(self, run_dir: Path, run_id: str, about: dict[str, Any], *, mode: WandbMode, project: str) -> None:
        """Raises ImportError without the wandb package, and what wandb raises."""
        # Read at its import: else an offline run's crash would be reported to the service all the same.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        settings = wandb.Settings(
            console="off",
            silent=True,
            disable_git=True,
            disable_code=True,
            init_timeout=30,
            x_disable_stats=True,
            x_disable_meta=True,
        )
        self._run = wandb.init(
            project=project,
            id=run_id,
            name=run_id,
            dir=str(run_dir),
            config=about,
            mode=mode,
            resume="allow",
            settings=settings,
        )
        self._run.define_metric("*", step_metric="optimizer_step")

    def write(self, step: int, figures: dict[str, float], at_s: float) -> None:
        self._run.log({**figures, "optimizer_step": step, "at_s": at_s})

    def close(self) -> None:
        self._run.finish()


class _Worker:
    """One sink's thread and queue. What goes wrong there is collected as messages for the emitter's thread."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._events: queue.Queue[Event | None] = queue.Queue(CAPACITY)
        self._messages: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._num_lost = 0
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"sink {sink.name}", daemon=True)
        self._thread.start()

    def offer(self, event: Event) -> None:
        if self._is_closed.is_set():
            return
        try:
            self._events.put_nowait(event)
        except queue.Full:
            self._num_lost += 1

    def finish(self, limit_s: float) -> None:
        if not self._is_closed.is_set():
            with suppress(queue.Full):
                self._events.put(None, timeout=limit_s)
                self._thread.join(limit_s)
        if self._thread.is_alive():
            self._is_closed.set()
            self._messages.put(f"{self._sink.name} did not end within {limit_s:g} s and was left behind")
        if self._num_lost:
            self._messages.put(f"{self._sink.name} was too slow for {self._num_lost} events; events.jsonl has them")

    def take_messages(self) -> Iterator[str]:
        while not self._messages.empty():
            yield self._messages.get()

    def _run(self) -> None:
        step = 0
        try:
            while (event := self._events.get()) is not None:
                step = getattr(event, "step", step)
                numbers = figures(event)
                if numbers:
                    self._sink.write(step, numbers, event.at_s)
            self._sink.close()
        except Exception as error:  # noqa: BLE001 - whatever a service of others raises, the run goes on without it
            self._messages.put(f"{self._sink.name} failed and was closed: {_in_a_line(error)}; the run goes on")
            self._close_quietly()
        finally:
            self._is_closed.set()
            # Nobody takes events any more: room for the end that `finish` may be putting.
            with suppress(queue.Empty):
                while True:
                    self._events.get_nowait()

    def _close_quietly(self) -> None:
        try:
            self._sink.close()
        except Exception as error:  # noqa: BLE001 - it failed before, which was told
            self._messages.put(f"{self._sink.name} could not be closed either: {_in_a_line(error)}")


def _numbers(value: Any) -> Iterator[tuple[str, float]]:
    items = value.items() if isinstance(value, dict) else enumerate(value, start=1)
    for key, entry in items:
        if isinstance(entry, int | float) and not isinstance(entry, bool):
            yield str(key), float(entry)
        elif isinstance(entry, dict | list | tuple):
            name = entry.get("name", key) if isinstance(entry, dict) else key
            for below, number in _numbers(entry):
                yield f"{name}/{below}", number


def _in_a_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
