"""A job while it runs: a board that a terminal redraws, and lines for where there is none."""

from collections.abc import Callable
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from dflashctl.views.palette import ACCENT, CAUTION, QUIET, countdown, duration
from dflashctl_remote.spec.events import (
    CheckpointSaved,
    Failed,
    Finished,
    Notice,
    Progress,
    Started,
    Step,
    Stopped,
    Validated,
)


class JobBoard:
    """Redrawn by rich's Live; fed with events."""

    def __init__(self, title: str, clock: Callable[[], float]) -> None:
        self._title = title
        self._clock = clock
        self._began_s = clock()
        self._spinner = Spinner("dots", style=ACCENT)
        self._parts: dict[str, Progress] = {}
        self._notices: list[str] = []
        self.remark = ""
        """One line below, for example that it is being stopped."""
        self.until_s: float | None = None
        """When the remark ends, by the clock."""

    def add(self, event: Any) -> None:
        if isinstance(event, Progress):
            self._parts[event.what] = event
        elif isinstance(event, Notice):
            self._notices.append(event.message)

    def __rich__(self) -> RenderableType:
        head = Table.grid(padding=(0, 1))
        head.add_row(
            self._spinner,
            Text(self._title),
            Text(duration(self._clock() - self._began_s), style=QUIET),
        )
        bars = Table.grid(padding=(0, 1))
        for part in self._parts.values():
            bars.add_row(
                Text(f"  {part.what}"),
                ProgressBar(total=max(1, part.total), completed=part.done, width=30, complete_style=ACCENT),
                Text(f"{part.done:,}/{part.total:,} {part.unit}"),
            )
        notes = [Text(f"  note: {message}", style=CAUTION) for message in self._notices[-3:]]
        said = countdown(self.remark, self.until_s, self._clock())
        remark = [Text(f"  {said}", style=CAUTION)] if said else []
        return Group(head, bars, *notes, *remark)


class Lines:
    """Which events become a line, and how it reads; at most one step or progress line in `every_s`."""

    def __init__(self, every_s: float = 5.0) -> None:
        self._every_s = every_s
        self._last_s: dict[str, float] = {}

    def line_of(self, event: Any) -> str | None:  # noqa: PLR0911 - one return a kind of event
        match event:
            case Started():
                return f"{event.job}: started, process {event.pid} on {event.device}"
            case Progress():
                if not self._is_due(event.what, event.at_s, is_last=event.done >= event.total):
                    return None
                return f"{event.what}: {event.done:,}/{event.total:,} {event.unit}"
            case Step():
                if not self._is_due("step", event.at_s, is_last=event.step in (1, event.num_steps)):
                    return None
                return step_line(event)
            case Validated():
                return validated_line(event)
            case CheckpointSaved():
                return f"checkpoint of step {event.step}: {event.path}"
            case Notice():
                return f"note: {event.message}"
            case Finished():
                return "finished"
            case Stopped():
                return f"stopped: {event.reason}"
            case Failed():
                return f"failed: {event.message}"
        return None

    def _is_due(self, what: str, at_s: float, *, is_last: bool) -> bool:
        if not is_last and at_s - self._last_s.get(what, -self._every_s) < self._every_s:
            return False
        self._last_s[what] = at_s
        return True


def validated_line(event: Validated) -> str:
    slots = " ".join(f"{share:.2f}" for share in event.accuracy_by_slot)
    parity = "parity holds" if event.parity.is_passed else f"parity: {event.parity.cause or event.parity.verdict}"
    return (
        f"validated at step {event.step}  {tau_text(event)}  loss {event.loss:.3f}  accuracy by slot {slots}  {parity}"
    )


def tau_text(event: Validated) -> str:
    """Measured tau with its interval, and on how much."""
    if event.tau is None:
        return "no tau: nothing was drafted"
    sure = "" if event.tau_low is None or event.tau_high is None else f" [{event.tau_low:.2f}, {event.tau_high:.2f}]"
    return f"tau {event.tau:.2f}{sure} measured on {event.num_prompts} prompts"


def step_line(step: Step) -> str:
    line = (
        f"step {step.step}/{step.num_steps}  loss {step.loss:.3f}  accuracy {step.accuracy:.3f}  "
        f"lr {step.learning_rate:.2e}  {step.context_tokens_per_s:,.0f} context tokens/s at r {step.block_ratio:.2f}"
    )
    return "  ".join([line, *_pace(step)])


def _pace(step: Step) -> list[str]:
    """How busy each stage was, the limiting one named, and how full the queues are; nothing of stages in turns."""
    if step.limiting_stage is None:
        return []
    busy = " ".join(f"{stage.name} {100 * stage.busy:.0f} %" for stage in step.stages)
    queues = " ".join(f"{queue.name} {queue.depth}/{queue.capacity}" for queue in step.queues)
    return [f"{step.limiting_stage} sets the pace (busy: {busy})", queues]
