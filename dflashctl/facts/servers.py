"""How servers are doing, seen now: process, health, counters. Changes nothing."""

from dataclasses import dataclass
from typing import Literal

from dflashctl.artifacts import ServerRef
from dflashctl.engines.base import SpecCounters
from dflashctl.engines.registry import engine_of
from dflashctl.errors import DflashctlError
from dflashctl.records import ServerRecord
from dflashctl.transport.base import Transport

State = Literal[
    "ready", "not proven", "unhealthy", "stopped", "ended without a word", "lost to reboot", "elsewhere", "unreadable"
]
ASK_S = 3.0


@dataclass(frozen=True)
class ServerState:
    name: str
    state: State
    record: ServerRecord | None
    live: SpecCounters | None
    """Since the server started, asked now; None: it does not answer, or drafts nothing."""
    detail: str = ""


def state_of(server: ServerRef, transport: Transport) -> ServerState:
    """A server whose record cannot be read hides no other: it is called unreadable."""
    try:
        record = server.record()
    except DflashctlError as error:
        return ServerState(server.name, "unreadable", None, None, error.message)
    if record is None:
        return ServerState(server.name, "unreadable", None, None, f"{server.record_path} is gone")
    match transport.presence(record.token):
        case "another boot":
            return ServerState(server.name, "lost to reboot", record, None)
        case "another namespace":
            return ServerState(server.name, "elsewhere", record, None, "it runs in another PID namespace")
        case "gone":
            state: State = "ended without a word" if record.stopped_at_s is None else "stopped"
            return ServerState(server.name, state, record, None)
    return _alive(server, record, transport)


def _alive(server: ServerRef, record: ServerRecord, transport: Transport) -> ServerState:
    engine = engine_of(record.engine)
    health = transport.get(record.base_url + engine.readiness.health_path, timeout_s=ASK_S)
    if record.proof is None:
        return ServerState(server.name, "not proven", record, None, "it is starting, or `deploy up` was cut off")
    if not health.is_ok:
        detail = f"{engine.readiness.health_path} gave {health.status or 'no answer'} {health.text[:100]}"
        return ServerState(server.name, "unhealthy", record, None, detail)
    metrics = transport.get(record.base_url + engine.readiness.metrics_path, timeout_s=ASK_S)
    live = engine.counters(metrics.text) if metrics.is_ok else None
    return ServerState(server.name, "ready", record, live)
