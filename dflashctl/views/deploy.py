"""Servers: what would be started, what was proven, and how those that there are do."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dflashctl.facts.servers import ServerState
from dflashctl.records import ServerRecord
from dflashctl.stages.deploy.plan import DeployPlan
from dflashctl.transport.process import Presence
from dflashctl.views.palette import BAD, CAUTION, GOOD, QUIET, duration
from dflashctl_remote.spec.process import ProcessToken

STATE_STYLE = {"ready": GOOD, "stopped": QUIET, "starting": CAUTION, "not proven": CAUTION, "elsewhere": CAUTION}


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
        Text(f"proven on {proof.num_tokens} tokens of real answers: {_tau(record)}"),
    ]
    if record.engine == "reference":
        lines.append(Text("the reference engine is for correctness and small machines, not for speed", style=QUIET))
    return Group(*lines)


def servers(states: Iterable[ServerState], now_s: float) -> RenderableType:
    """One row a server; what is said of its state stands below, in full."""
    table = Table(box=None, header_style=QUIET, padding=(0, 1))
    for column in ("server", "state", "address", "target", "drafter", "tau when proven", "tau since start", "for"):
        table.add_column(column, overflow="fold")
    details: list[RenderableType] = []
    for state in states:
        record = state.record
        shown = Text(state.state, style=STATE_STYLE.get(state.state, BAD))
        if state.detail:
            details.append(Text(f"{state.name}: {state.state}: {state.detail}", style=QUIET))
        if record is None:
            table.add_row(state.name, shown, *["-"] * 6)
            continue
        table.add_row(
            state.name,
            shown,
            _address(record),
            Path(record.target).name,
            record.drafter_label or "none",
            _proven(record, now_s),
            _live(state),
            duration((record.stopped_at_s or now_s) - record.started_at_s),
        )
    return Group(table, *details)


def down_plan(record: ServerRecord, presence: Presence, members: Sequence[ProcessToken]) -> RenderableType:
    """What --dry-run shows of `deploy down`."""
    token = record.token
    if presence != "alive" and not members:
        return Text(f"would signal nothing: process {token.pid} of server {record.name} is not there ({presence})")
    lines = [Text(f"would end server {record.name}, nothing was signalled", style=CAUTION)]
    if presence == "alive":
        lines.append(Text(f"SIGTERM to process {token.pid} ({record.base_url})"))
    pids = ", ".join(str(member.pid) for member in members)
    lines.append(Text(f"SIGKILL to what is left after the grace of: {pids}"))
    return Group(*lines)


def _address(record: ServerRecord) -> str:
    address = record.base_url.removeprefix("http://")
    return "not known yet" if address.endswith(":0") else address


def _proven(record: ServerRecord, now_s: float) -> str:
    if record.proof is None or record.proof.tau is None:
        return "-"
    return f"{record.proof.tau:.2f}, {duration(now_s - record.proof.at_s)} ago"


def _live(state: ServerState) -> str:
    if state.live is None or state.live_tau is None:
        return "-"
    return f"{state.live_tau:.2f} ({state.live.num_drafts:,} steps)"


def _tau(record: ServerRecord) -> str:
    proof = record.proof
    assert proof is not None
    if proof.tau is None:
        return "no drafter, plain decoding"
    return f"tau {proof.tau:.2f} over {proof.num_verify_steps} verify steps, from the engine's counters"
