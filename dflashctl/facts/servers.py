"""How servers are doing, seen now: process, health, counters. Changes nothing."""

from dataclasses import dataclass
from typing import Any, Literal

from dflashctl.artifacts import ServerRef
from dflashctl.engines.base import SpecCounters
from dflashctl.engines.registry import engine_of
from dflashctl.errors import DflashctlError
from dflashctl.records import ServerRecord
from dflashctl.transport.base import Transport
from dflashctl_remote.spec.events import Failed, Serving, Stopped

State = Literal[
    "starting",
    "ready",
    "not proven",
    "unhealthy",
    "stopped",
    "failed",
    "ended without a word",
    "lost to reboot",
    "elsewhere",
    "unreadable",
]
ASK_S = 3.0
SUSPICIOUS_STEPS = 50
"""So many verify steps without one accepted draft are no chance."""
EVENT_SLACK_S = 2.0
"""The record is written after the process was started, which may have said something by then."""


@dataclass(frozen=True)
class ServerState:
    name: str
    state: State
    record: ServerRecord | None
    live: SpecCounters | None
    """Since the server started, asked now; None: it does not answer, or drafts nothing."""
    detail: str = ""
    live_tau: float | None = None
    """Of `live`."""


def state_of(server: ServerRef, transport: Transport) -> ServerState:
    """A server whose record cannot be read hides no other: it is called unreadable."""
    try:
        return _seen(server, transport)
    except DflashctlError as error:
        return ServerState(server.name, "unreadable", None, None, error.message)


def _seen(server: ServerRef, transport: Transport) -> ServerState:
    record = server.record()
    if record is None:
        return ServerState(server.name, "unreadable", None, None, f"{server.record_path} is gone")
    match transport.presence(record.token):
        case "another boot":
            return ServerState(server.name, "lost to reboot", record, None)
        case "another namespace":
            return ServerState(server.name, "elsewhere", record, None, "it runs in another PID namespace")
        case "gone":
            return _ended(server, record, transport)
    return _alive(server, _addressed(server, record, transport), transport)


def _events(server: ServerRef, record: ServerRecord, transport: Transport) -> list[Any]:
    """Of its last start."""
    events = transport.follow(server.events_path, until=lambda: True)
    return [event for event in events if event.at_s >= record.started_at_s - EVENT_SLACK_S]


def _addressed(server: ServerRef, record: ServerRecord, transport: Transport) -> ServerRecord:
    """With the port that it says to have chosen, if whoever started it did not live to write that down."""
    for event in _events(server, record, transport) if record.proof is None else ():
        if isinstance(event, Serving):
            return record.model_copy(update={"base_url": f"http://{event.address}:{event.port}"})
    return record


def _ended(server: ServerRef, record: ServerRecord, transport: Transport) -> ServerState:
    """How it ended: by its own last event, else by the record."""
    ours = _events(server, record, transport)
    match ours[-1] if ours else None:
        case Failed(message=message):
            return ServerState(server.name, "failed", record, None, message)
        case Stopped(reason=reason) if record.proof is not None:
            return ServerState(server.name, "stopped", record, None, reason)
    if record.stopped_at_s is None:
        return ServerState(server.name, "ended without a word", record, None, f"its log: {server.log_path}")
    if record.proof is None:
        return ServerState(server.name, "failed", record, None, record.failure or "it was never proven ready")
    if record.failure is not None:
        return ServerState(server.name, "ended without a word", record, None, record.failure)
    return ServerState(server.name, "stopped", record, None)


def _alive(server: ServerRef, record: ServerRecord, transport: Transport) -> ServerState:
    engine = engine_of(record.engine)
    health = transport.get(record.base_url + engine.readiness.health_path, timeout_s=ASK_S)
    said = f"{engine.readiness.health_path} gave {health.status or 'no answer'} {health.text[:100]}"
    if record.proof is None and health.is_ok:
        detail = "it answers; `deploy up` is still proving it, or was cut off"
        return ServerState(server.name, "not proven", record, None, detail)
    if record.proof is None:
        return ServerState(server.name, "starting", record, None, said)
    if not health.is_ok:
        return ServerState(server.name, "unhealthy", record, None, said)
    metrics = transport.get(record.base_url + engine.readiness.metrics_path, timeout_s=ASK_S)
    live = engine.counters(metrics.text) if metrics.is_ok else None
    if record.drafter is not None and live is None:
        detail = f"it has a drafter, and {engine.readiness.metrics_path} counts no drafts"
        return ServerState(server.name, "unhealthy", record, None, detail)
    if live is not None and live.num_drafts >= SUSPICIOUS_STEPS and not live.num_accepted_tokens:
        detail = f"no draft was accepted in {live.num_drafts} verify steps"
        return ServerState(server.name, "unhealthy", record, live, detail, live.tau)
    return ServerState(server.name, "ready", record, live, live_tau=None if live is None else live.tau)
