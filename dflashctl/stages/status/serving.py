"""Servers and benchmarks as subjects."""

from collections.abc import Sequence
from pathlib import Path

from dflashctl.artifacts import ServerRef
from dflashctl.facts.servers import ServerState, state_of
from dflashctl.records import ServerRecord
from dflashctl.stages.status.fact import Fact, Kind, Subject, unknown
from dflashctl.stages.status.measured import Benchmark
from dflashctl.transport.base import Transport

ASKED = ("ready", "unhealthy", "not proven", "starting")
"""States in which the process lives, and its health was asked for."""


def server_subject(ref: ServerRef, transport: Transport, now_s: float) -> Subject:
    """Asks its process, its health and its counters."""
    try:
        state = state_of(ref, transport)
    except OSError as error:
        state = ServerState(ref.name, "unreadable", None, None, str(error))
    return subject_of(state, str(ref.record_path), now_s)


def subject_of(state: ServerState, path: str, now_s: float) -> Subject:
    """Pure; `path` is that of the record."""
    detail = state.detail.removeprefix(f"{state.state} ")
    text = state.state if not detail or state.record is None else f"{state.state}: {detail}"
    record = state.record
    if record is None:
        said = Fact("state", text, "reported", path, value=state.state, warning=state.detail)
        return Subject("server", state.name, said, ())
    if state.state in ASKED:
        source, at_s = f"process {record.token.pid}, {record.base_url}/health", now_s
    else:
        source, at_s = f"process {record.token.pid}, {path}", record.stopped_at_s or now_s
    kind: Kind = "live" if state.state in ASKED else "reported"
    said = Fact("state", text, kind, source, at_s, state.state)
    return Subject("server", state.name, said, (*_record(record, path), *_tau(state, record, path, now_s)))


def benchmark_subjects(benchmarks: Sequence[Benchmark], servers: Sequence[Subject]) -> tuple[Subject, ...]:
    """The newest of each server, by name."""
    newest = {one.record.server: one for one in benchmarks}
    num_of = {name: sum(one.record.server == name for one in benchmarks) for name in newest}
    runs_with = {server.name: fact.text for server in servers for fact in server.facts if fact.name == "drafter"}
    return tuple(_benchmark(newest[name], num_of[name], runs_with.get(name)) for name in sorted(newest))


def _record(record: ServerRecord, path: str) -> list[Fact]:
    def reported(name: str, text: str, value: str | None) -> Fact:
        return Fact(name, text, "reported", path, record.started_at_s, value)

    drafter = _drafter(record.drafter_label if record.drafter is not None else None)
    return [
        reported("address", f"{_address(record)}, {record.engine}", record.base_url),
        reported("target", f"{Path(record.target).name}, asked for as {record.model}", record.target),
        reported("drafter", drafter, record.drafter_label),
    ]


def _address(record: ServerRecord) -> str:
    return "not known: it never listened" if record.base_url.endswith(":0") else record.base_url


def _tau(state: ServerState, record: ServerRecord, path: str, now_s: float) -> list[Fact]:
    """What its proof measured, and what its counters say since it started."""
    facts = []
    proof, live = record.proof, state.live
    if proof is None:
        facts.append(unknown("proof", "it never answered a real question", "dflashctl deploy up"))
    elif proof.tau is None:
        text = f"one answer of {proof.num_tokens} tokens"
        facts.append(Fact("proof", text, "measured", path, proof.at_s, proof.num_tokens, "tokens"))
    else:
        text = f"tau {proof.tau:.2f} over {proof.num_verify_steps} verify steps, {proof.num_tokens} tokens"
        facts.append(Fact("proof", text, "measured", path, proof.at_s, proof.tau, "tokens a verify step"))
    metrics = f"{record.base_url}/metrics"
    if live is not None and live.tau is not None:
        text = f"{live.tau:.2f} over {live.num_drafts:,} verify steps since it started"
        facts.append(Fact("live tau", text, "live", metrics, now_s, live.tau, "tokens a verify step"))
    elif record.drafter is not None and state.state in ASKED:
        facts.append(unknown("live tau", "its counters tell of no verify step", metrics))
    return facts


def _benchmark(one: Benchmark, num: int, now_drafter: str | None) -> Subject:
    record, path = one.record, str(one.path)
    doubt = "" if record.is_valid else "the benchmark is not valid"
    drafter = _drafter(record.drafter_label)

    def fact(name: str, text: str, value: str | float | bool, warning: str = "", kind: Kind = "measured") -> Fact:
        return Fact(name, text, kind, path, record.ended_at_s, value, "", warning)

    other = f"measured with {drafter}, and the server's record says {now_drafter}"
    asked = f"{record.server}, drafter {drafter}"
    facts = [
        fact("server", asked, record.server, "" if now_drafter in (None, drafter) else other, "reported"),
    ]
    if record.tau is not None:
        text = f"{record.tau:.2f} over {record.num_verify_steps:,} verify steps, {record.num_prompts} prompts"
        facts.append(fact("served tau", text, record.tau, doubt))
    if record.speedup is not None:
        slower = ", slower" if record.speedup < 1 else ""
        facts.append(fact("speed-up", f"{record.speedup:.2f}x plain decoding{slower}", record.speedup, doubt))
    else:
        facts.append(unknown("speed-up", "it was not compared with plain decoding", "dflashctl bench --server NAME"))
    if record.is_lossless is None:
        facts.append(unknown("lossless", "answers were not compared", "dflashctl bench --server NAME"))
    else:
        equal = "all answers equal the baseline's" if record.is_lossless else "answers differ from the baseline's"
        facts.append(fact("lossless", equal, record.is_lossless, doubt if record.is_lossless else "it changes answers"))
    older = f", the newest of {num} of this server" if num > 1 else ""
    word = "valid" if record.is_valid else "not valid"
    said = fact("state", word + older, word, "" if record.is_valid else "it proves nothing: see its report.html")
    return Subject("benchmark", one.path.parent.name, said, tuple(facts))


def _drafter(label: str | None) -> str:
    return "none, plain decoding" if label is None else label
