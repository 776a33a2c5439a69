"""Plans, runs, resolved values and manifests as tables."""

from collections.abc import Iterable, Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dflashctl.config.schema import Resolved
from dflashctl.defaults import LOCAL
from dflashctl.facts.runs import RunState
from dflashctl.stages.jobs import JobPlan
from dflashctl.stages.train.plan import Figures, TrainPlan
from dflashctl.views.palette import ACCENT, BAD, CAUTION, GOOD, QUIET, binary, duration, percent, si
from dflashctl.views.placing import placing_rows
from dflashctl_remote.spec.data import DatasetInfo
from dflashctl_remote.spec.manifest import Manifest

SAID = ("running", "starting", "unreadable", "killed", "elsewhere")
"""States whose detail is told with them; how a run ended otherwise is told by `train watch`."""
STATE_STYLE = {
    "running": GOOD,
    "finished": GOOD,
    "failed": BAD,
    "stopped": CAUTION,
    "starting": CAUTION,
    "unreachable": QUIET,
}


def job_plan(plan: JobPlan) -> RenderableType:
    """What --dry-run shows of a job."""
    grid = pairs()
    grid.add_row("host", plan.host)
    grid.add_row("argv", Text(" ".join(plan.job.argv)))
    grid.add_row("env", Text(" ".join(f"{name}={value}" for name, value in plan.job.env)))
    for path in plan.writes:
        grid.add_row("writes", Text(str(path)))
    grid.add_row("events", Text(str(plan.job.events)))
    grid.add_row("log", Text(str(plan.job.log)))
    spec = Text(plan.spec_json.rstrip(), no_wrap=True, overflow="ignore")
    return Group(
        Text("would run, nothing was started", style=CAUTION),
        grid,
        Text(str(plan.spec_path), style=ACCENT),
        spec,
    )


def train_plan(plan: TrainPlan) -> RenderableType:
    return Group(training_figures(plan.figures, plan.record.train.num_steps), job_plan(plan.job))


def training_figures(figures: Figures, num_steps: int) -> RenderableType:
    grid = pairs()
    grid.add_row("steps", f"{num_steps:,} ({figures.num_batches:,} batches)")
    grid.add_row("tokens", f"{figures.context_tokens_per_step:,} a step, padding included")
    grid.add_row("epochs", f"estimated {figures.estimated_epochs:.2f}, padding not counted")
    grid.add_row("anchors", f"{figures.anchors_per_batch:,} a batch, r = {figures.block_ratio:.2f}")
    grid.add_row("taps", ", ".join(map(str, figures.tap_layers)))
    grid.add_row("drafter", f"{si(figures.num_drafter_parameters)} parameters ({figures.num_drafter_parameters:,})")
    grid.add_row("checkpoint", f"estimated {binary(figures.estimated_checkpoint_bytes)}")
    for name, text in placing_rows(figures.placing):
        grid.add_row(name, text)
    return grid


def runs(states: Iterable[RunState], now_s: Mapping[str, float], *, is_part: bool = False) -> RenderableType:
    """`now_s`: what each host's own clock says, which the age of its events counts from.

    `is_part`: a piece of a longer list, whose head `runs_head` is; its columns stand under that.
    """
    told = list(states)
    has_hosts = is_part or any(state.run.host != LOCAL for state in told)
    has_tau = is_part or any(_tau(state).plain != "-" for state in told)
    table = _runs_table(has_hosts=has_hosts, has_tau=has_tau, is_part=is_part)
    for state in told:
        step = state.last_step
        here = now_s.get(state.run.host)
        age = "-"
        if state.last_event_at_s is not None and here is not None:
            age = f"{duration(max(0.0, here - state.last_event_at_s))} ago"
        cells: list[Text | str] = [
            Text(state.run.run_id),
            Text(
                f"{state.state} ({state.detail})" if state.state == "unreachable" else state.state,
                style=STATE_STYLE.get(state.state, BAD),
            ),
            f"{step.step:,}/{step.num_steps:,}" if step else "-",
            f"{step.loss:.3f}" if step else "-",
            percent(step.accuracy) if step else "-",
            *([_tau(state)] if has_tau else []),
            f"step {state.last_checkpoint.step:,}" if state.last_checkpoint else "-",
            age,
        ]
        table.add_row(*([Text(state.run.host)] if has_hosts else []), *cells)
    # How a run ended is told elsewhere; what is odd about one that goes on, or cannot be told, belongs here.
    odd = [state for state in told if state.detail and state.state in SAID]
    return Group(table, *(Text(f"  {state.run.run_id}: {state.detail}", style=CAUTION) for state in odd))


def runs_head() -> RenderableType:
    """The head of a list that is shown in pieces, as hosts answer."""
    table = _runs_table(has_hosts=True, has_tau=True, is_part=True)
    table.show_header = True
    return table


def _tau(state: RunState) -> Text:
    """Of the newest validation, marked where its parity gate did not pass."""
    last = state.last_validated
    if last is None or last.tau is None:
        return Text("-")
    return Text(f"{last.tau:.2f}") if last.parity.is_passed else Text(f"{last.tau:.2f}!", style=CAUTION)


def _runs_table(*, has_hosts: bool, has_tau: bool, is_part: bool) -> Table:
    table = Table(box=None, header_style=QUIET, padding=(0, 2), show_header=not is_part)
    widths = {
        "host": 10,
        "run": 20,
        "state": 10,
        "step": 15,
        "loss": 6,
        "accuracy": 8,
        "tau": 5,
        "checkpoint": 11,
        "last event": 10,
    }
    left_out = {*(() if has_hosts else ("host",)), *(() if has_tau else ("tau",))}
    for column, width in widths.items():
        if column not in left_out:
            table.add_column(column, min_width=width if is_part else None)
    return table


def resolved_values(values: Iterable[Resolved]) -> RenderableType:
    table = Table(box=None, header_style=QUIET, padding=(0, 2))
    for column in ("key", "value", "from"):
        table.add_column(column, overflow="fold")
    for value in values:
        is_default = value.origin == "default"
        table.add_row(
            value.path,
            Text(shown(value.value), style=QUIET if is_default else ""),
            Text(value.origin, style=QUIET if is_default else ACCENT),
        )
    return table


def shown(value: object) -> str:
    """A value as it would be written in YAML."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(shown(item) for item in value)}]"
    return str(value)


def dataset(info: DatasetInfo) -> RenderableType:
    grid = pairs()
    supervised = info.num_supervised_tokens / max(1, info.num_tokens)
    grid.add_row("documents", f"{info.num_documents:,}")
    grid.add_row("tokens", f"{info.num_tokens:,}, longest document {info.max_document_tokens:,}")
    grid.add_row("trained on", f"{info.num_supervised_tokens:,} tokens ({percent(supervised)})")
    if info.num_skipped_rows:
        grid.add_row("skipped", Text(f"{info.num_skipped_rows:,} bad rows", style=CAUTION))
    if info.num_truncated:
        grid.add_row("cut", Text(f"{info.num_truncated:,} documents", style=CAUTION))
    return grid


def manifest(folder: str, content: Manifest) -> RenderableType:
    table = Table(box=None, header_style=QUIET, padding=(0, 2), title=Text(folder, style=ACCENT), title_justify="left")
    table.add_column("file")
    table.add_column("size", justify="right")
    table.add_column("sha256")
    for entry in content.files:
        table.add_row(entry.path, binary(entry.size_bytes), Text(entry.sha256[:16], style=QUIET))
    return table


def pairs() -> Table:
    """Two columns: a name, and what it is."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style=QUIET, justify="right")
    grid.add_column(overflow="fold")
    return grid
