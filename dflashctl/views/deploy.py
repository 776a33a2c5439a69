"""Servers: what would be started, what was proven, and how those that there are do."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dflashctl.facts.servers import ServerState
from dflashctl.records import ServerRecord
from dflashctl.stages.deploy.plan import DeployPlan
from dflashctl.views.palette import BAD, CAUTION, GOOD, QUIET, duration

STATE_STYLE = {"ready": GOOD, "stopped": QUIET, "not proven": CAUTION, "elsewhere": CAUTION}


def deploy_plan(plan: DeployPlan) -> RenderableType:
    """What --dry-run shows of `deploy up`."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style=QUIET, justify="right")
    grid.add_column(overflow="fold")
    grid.add_row("host", plan.spec.host)
    grid.add_row("engine", plan.spec.engine)
    grid.add_row("port", "any free one" if plan.spec.port == 0 else str(plan.spec.port))
    grid.add_row("target", plan.spec.target)
    if plan.drafter is not None:
        grid.add_row("drafter", f"{plan.drafter.label}, {plan.num_draft_tokens} drafts a step ({plan.drafter.folder})")
    grid.add_row("argv", Text(" ".join(plan.launch.argv)))
    grid.add_row("env", Text(" ".join(f"{name}={value}" for name, value in plan.launch.env)))
    grid.add_row("log", Text(str(plan.server.log_path)))
    files: list[RenderableType] = []
    for path, text in plan.launch.files:
        files += [Text(f"would write {path}"), Text(text.rstrip(), no_wrap=True, overflow="ignore")]
    return Group(Text("would start, nothing was started", style=CAUTION), grid, *files)


def ready(record: ServerRecord, *, was_running: bool) -> RenderableType:
    """The end of `deploy up`: what was seen before it was called ready."""
    proof = record.proof
    assert proof is not None
    what = "is up already, with the same settings" if was_running else "is ready"
    lines = [
        Text(f"server {record.name} {what}: {record.base_url}/v1, model {record.model}", style=GOOD),
        Text(f"process {record.token.pid}, started {duration(proof.at_s - record.started_at_s)} before it was ready"),
        Text(f"proven by one completion of {proof.num_tokens} tokens: {_tau(record)}"),
    ]
    if record.engine == "reference":
        lines.append(Text("the reference engine is for correctness and small machines, not for speed", style=QUIET))
    return Group(*lines)


def servers(states: Iterable[ServerState], now_s: float) -> RenderableType:
    table = Table(box=None, header_style=QUIET, padding=(0, 2))
    for column in ("server", "state", "address", "drafter", "tau at start", "tau since start", "for"):
        table.add_column(column, overflow="fold")
    for state in states:
        record = state.record
        if record is None:
            table.add_row(state.name, Text(state.state, style=BAD), "-", "-", "-", "-", Text(state.detail))
            continue
        table.add_row(
            state.name,
            Text(state.state, style=STATE_STYLE.get(state.state, BAD)),
            record.base_url.removeprefix("http://"),
            record.drafter_label or "none",
            "-" if record.proof is None or record.proof.tau is None else f"{record.proof.tau:.2f}",
            _live(state),
            duration((record.stopped_at_s or now_s) - record.started_at_s),
        )
        if state.detail:
            table.add_row("", Text(state.detail, style=QUIET))
    return table


def _live(state: ServerState) -> str:
    if state.live is None or state.live.tau is None:
        return "-"
    return f"{state.live.tau:.2f} ({state.live.num_drafts:,} steps)"


def _tau(record: ServerRecord) -> str:
    proof = record.proof
    assert proof is not None
    if proof.tau is None:
        return "no drafter, plain decoding"
    return f"tau {proof.tau:.2f} over {proof.num_verify_steps} verify steps, from the engine's counters"
