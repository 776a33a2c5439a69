"""A training run while it runs: where it is, how the loss falls, what it costs, when it ends."""

from collections.abc import Callable
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dflashctl.facts.host_stream import GpuUse
from dflashctl.facts.stage_loads import limiting_of, recent_loads, waits_of
from dflashctl.views.palette import (
    ACCENT,
    CAUTION,
    HEADLINE,
    QUIET,
    binary,
    countdown,
    duration,
    percent,
    si,
    sparkline,
)
from dflashctl_remote.spec.events import CheckpointSaved, Notice, Progress, Started, Step, Validated

SPARK_WIDTH = 44
ETA_STEPS = 50
"""Steps whose pace the end is reckoned from."""


class TrainingBoard:
    """Redrawn by rich's Live; fed with events."""

    def __init__(self, run_id: str, clock: Callable[[], float], *, is_ascii: bool = False) -> None:
        self._run_id = run_id
        self._clock = clock
        self._is_ascii = is_ascii
        self._device = ""
        self._preparing: Progress | None = None
        self._steps: list[Step] = []
        self._saved: CheckpointSaved | None = None
        self._validated: list[Validated] = []
        self._notices: list[str] = []
        self.gpus: tuple[GpuUse, ...] = ()
        """As they were when last asked."""
        self.remark = ""
        self.until_s: float | None = None
        """When the remark ends, by the clock."""

    def add(self, event: Any) -> None:
        match event:
            case Started():
                self._device = event.device
            case Progress():
                self._preparing = event
            case Step():
                self._steps.append(event)
            case Validated():
                self._validated.append(event)
            case CheckpointSaved():
                self._saved = event
            case Notice():
                self._notices.append(event.message)

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = [self._figures() if self._steps else self._waiting()]
        parts += [Text(f"note: {message}", style=CAUTION) for message in self._notices[-2:]]
        if self.remark:
            parts.append(Text(countdown(self.remark, self.until_s, self._clock()), style=CAUTION))
        title = f"train {self._run_id}" + (f" on {self._device}" if self._device else "")
        return Panel(Group(*parts), title=title, title_align="left", border_style=ACCENT, width=88)

    def _waiting(self) -> RenderableType:
        if self._preparing is not None:
            part = self._preparing
            return Text(f"{part.what}: {part.done:,}/{part.total:,} {part.unit}")
        return Text("loading target and drafter ...", style=QUIET)

    def _figures(self) -> RenderableType:
        last = self._steps[-1]
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(total=last.num_steps, completed=last.step, width=SPARK_WIDTH, complete_style=ACCENT),
            Text(f"step {last.step:,} of {last.num_steps:,}"),
            Text(self._remaining(), style=QUIET),
        )
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style=QUIET)
        grid.add_column(justify="right")
        grid.add_column()
        losses = [step.loss for step in self._steps]
        accuracies = [step.accuracy for step in self._steps]
        grid.add_row("loss", Text(f"{last.loss:.3f}", style=HEADLINE), self._spark(losses))
        grid.add_row("accuracy", Text(percent(last.accuracy)), self._spark(accuracies))
        self._add_validation(grid)
        grid.add_row("learning rate", f"{last.learning_rate:.2e}", f"epoch {last.epoch:.2f}")
        grid.add_row(
            "throughput",
            f"{si(last.context_tokens_per_s)} tok/s",
            f"context tokens, r = {last.block_ratio:.2f} block tokens each",
        )
        grid.add_row("peak memory", binary(last.peak_memory_bytes), self._saved_text())
        self._add_stages(grid)
        for gpu in self.gpus:
            grid.add_row("gpu", _share(gpu.utilization_percent), Text(_gpu_text(gpu)))
        return Group(bar, grid)

    def _add_stages(self, grid: Table) -> None:
        """What each did with its time of late, and what waits between them."""
        loads = recent_loads(self._steps)
        limiting = limiting_of(loads)
        for load in loads:
            name = load.name if load.count == 1 else f"{load.count} {load.name}s"
            does = ", ".join(part for part in ("busy", waits_of(load)) if part)
            if load.name == limiting:
                grid.add_row(name, Text(_percent(load.busy), style=HEADLINE), Text(f"{does}: sets the pace"))
            else:
                grid.add_row(name, _percent(load.busy), Text(does, style=QUIET))
        queues = [f"{queue.name} {queue.depth} of {queue.capacity}" for queue in self._steps[-1].queues]
        if queues:
            grid.add_row("queues", "", Text(", ".join(queues), style=QUIET))

    def _add_validation(self, grid: Table) -> None:
        if not self._validated:
            return
        last = self._validated[-1]
        losses = [event.loss for event in self._validated]
        held_out = self._spark(losses) if len(losses) > 1 else Text("loss, on documents never trained on", style=QUIET)
        grid.add_row("held out", f"{last.loss:.3f}", held_out)
        taus = [event.tau for event in self._validated if event.tau is not None]
        figure = Text("none" if last.tau is None else f"{last.tau:.2f}", style=HEADLINE)
        parts = [f"measured at step {last.step:,}", f"{last.num_prompts} prompts"]
        if last.tau_low is not None and last.tau_high is not None:
            parts.insert(1, f"[{last.tau_low:.2f}, {last.tau_high:.2f}]")
        grid.add_row("tau", figure, self._spark(taus) if len(taus) > 1 else Text(", ".join(parts), style=QUIET))
        if len(taus) > 1:
            grid.add_row("", "", Text(", ".join(parts), style=QUIET))
        beside = [
            f"{value:.2f} {what}"
            for what, value in (("without repeats", last.tau_without_repeats), ("by look-up", last.tau_of_lookup))
            if value is not None and last.tau is not None
        ]
        if beside:
            grid.add_row("", "", Text(", ".join(beside), style=QUIET))
        if not last.parity.is_passed:
            grid.add_row("parity", Text(last.parity.verdict, style=CAUTION), Text(last.parity.says, style=CAUTION))

    def _spark(self, values: list[float]) -> Text:
        return Text(sparkline(values, SPARK_WIDTH, is_ascii=self._is_ascii), style=ACCENT)

    def _saved_text(self) -> str:
        if self._saved is None:
            return "no checkpoint yet"
        return f"checkpoint of step {self._saved.step:,}, {binary(self._saved.size_bytes)}"

    def _remaining(self) -> str:
        recent = self._steps[-ETA_STEPS:]
        if len(recent) < 2:
            return ""
        last = recent[-1]
        pace_s = (last.at_s - recent[0].at_s) / (last.step - recent[0].step or 1)
        left_s = max(0.0, pace_s * (last.num_steps - last.step) - (self._clock() - last.at_s))
        return f"about {duration(left_s)} left"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _share(number: float | None) -> str:
    return "not told" if number is None else f"{number:.0f} %"


def _gpu_text(gpu: GpuUse) -> str:
    parts = [gpu.name]
    if gpu.used_bytes is not None and gpu.total_bytes is not None:
        parts.append(f"{binary(gpu.used_bytes)} of {binary(gpu.total_bytes)}")
    if gpu.power_w is not None:
        parts.append(f"{gpu.power_w:.0f} W")
    if gpu.temperature_c is not None:
        parts.append(f"{gpu.temperature_c:.0f} C")
    return ", ".join(parts)
