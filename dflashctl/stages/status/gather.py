"""Reads all that a work folder and its processes can tell. Changes nothing; what cannot be read is a fact too."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dflashctl.artifacts import RunRef, Workdir
from dflashctl.errors import DflashctlError
from dflashctl.facts.runs import RunState, state_if_readable
from dflashctl.facts.servers import ServerState
from dflashctl.facts.servers import state_of as server_state_of
from dflashctl.records import BenchRecord
from dflashctl.stages.status.fact import Fact, Snapshot, Subject, unknown
from dflashctl.stages.status.measured import Measured, measurements, tau_facts
from dflashctl.stages.status.training import run_facts
from dflashctl.transport.base import Transport
from dflashctl_remote.spec.errors import BundleError
from dflashctl_remote.spec.manifest import read_manifest

SILENT_AFTER_S = 120.0
"""A run that trains speaks at every step; after so long without a word its state is old."""


def gather(workdir: Workdir, transport: Transport, now_s: float) -> Snapshot:
    measured, problems = measurements(workdir)
    subjects = [
        *(_run(ref, measured, transport, now_s) for ref in workdir.runs()),
        *(_server(server_state_of(ref, transport), str(ref.record_path), now_s) for ref in workdir.servers()),
        *(_benchmark(path) for path in sorted(workdir.benchmarks.glob("*/run.json"))),
        *(_dataset(folder) for folder in _datasets(workdir)),
    ]
    return Snapshot(transport.name, str(workdir.path), now_s, tuple(subjects), problems)


def _run(ref: RunRef, measured: Sequence[Measured], transport: Transport, now_s: float) -> Subject:
    state = state_if_readable(ref, transport)
    return Subject("run", ref.run_id, _run_state(state), (*run_facts(state, now_s), *tau_facts(ref, measured)))


def _run_state(state: RunState) -> Fact:
    is_alive = state.state in ("running", "starting")
    warning = ""
    if state.state == "unreadable":
        warning = state.detail
    return Fact(
        name="state",
        text=state.state if not state.detail or warning else f"{state.state}: {state.detail}",
        kind="live" if is_alive else "reported",
        source=str(state.run.events_path),
        at_s=state.last_event_at_s,
        value=state.state,
        warning=warning,
        stale_after_s=SILENT_AFTER_S if is_alive else None,
    )


def _server(state: ServerState, record_path: str, now_s: float) -> Subject:
    record = state.record
    text = state.state if not state.detail else f"{state.state}: {state.detail}"
    if record is None:
        said = Fact("state", text, "reported", record_path, value=state.state, warning="its record cannot be read")
        return Subject("server", state.name, said, ())
    address = record.base_url
    if state.state in ("ready", "unhealthy", "not proven"):
        said = Fact("state", text, "live", f"{address}/health", now_s, state.state)
    else:
        said = Fact("state", text, "live", f"process {record.token.pid}", record.stopped_at_s or now_s, state.state)
    drafter = "none, plain decoding" if record.drafter is None else str(record.drafter_label)
    facts = [
        Fact("address", address, "reported", record_path, record.started_at_s, address),
        Fact("target", Path(record.target).name, "reported", record_path, record.started_at_s, record.target),
        Fact("drafter", drafter, "reported", record_path, record.started_at_s, record.drafter),
    ]
    if record.proof is not None and record.proof.tau is not None:
        proof = record.proof
        text = f"{proof.tau:.2f} over {proof.num_verify_steps} verify steps"
        facts.append(Fact("tau when it was proven", text, "measured", record_path, proof.at_s, proof.tau))
    if state.live is not None and state.live.tau is not None:
        text = f"{state.live.tau:.2f} over {state.live.num_drafts:,} verify steps"
        facts.append(Fact("tau since it started", text, "live", f"{address}/metrics", now_s, state.live.tau))
    return Subject("server", state.name, said, tuple(facts))


def _benchmark(path: Path) -> Subject:
    name = path.parent.name
    try:
        record = read_benchmark(path)
    except DflashctlError as error:
        said = Fact("state", "unreadable", "reported", str(path), warning=error.message)
        return Subject("benchmark", name, said, ())
    at_s = record.ended_at_s

    def fact(name: str, text: str, value: Any, warning: str = "") -> Fact:
        return Fact(name, text, "measured", str(path), at_s, value, warning=warning)

    said = fact("state", "valid" if record.is_valid else "not valid", record.is_valid)
    facts = [fact("server", f"{record.server}, drafter {record.drafter_label or 'none'}", record.server)]
    doubt = "" if record.is_valid else "the benchmark is not valid"
    if record.tau is not None:
        text = f"{record.tau:.2f} over {record.num_verify_steps:,} verify steps, {record.num_prompts} prompts"
        facts.append(fact("served tau", text, record.tau, doubt))
    if record.speedup is not None:
        facts.append(fact("speed-up", f"{record.speedup:.2f}x plain decoding", record.speedup, doubt))
    if record.is_lossless is not None:
        equal = "all answers equal the baseline's" if record.is_lossless else "answers differ from the baseline's"
        facts.append(fact("lossless", equal, record.is_lossless))
    return Subject("benchmark", name, said, tuple(facts))


def read_benchmark(path: Path) -> BenchRecord:
    """The part of a benchmark's run.json that others need. Raises DflashctlError."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return BenchRecord.model_validate({name: raw[name] for name in BenchRecord.model_fields if name in raw})
    except (OSError, ValueError, TypeError, ValidationError) as error:
        first = str(error).splitlines()[0]
        raise DflashctlError(f"{path} cannot be read as a benchmark's record: {first}") from error


def _datasets(workdir: Workdir) -> list[Path]:
    return [path.parent for path in sorted(workdir.path.glob("*/manifest.json"))]


def _dataset(folder: Path) -> Subject:
    path = str(folder / "manifest.json")
    try:
        manifest = read_manifest(folder, "dataset")
    except BundleError as error:
        said = Fact("state", "no complete dataset", "reported", path, warning=error.message)
        return Subject("dataset", folder.name, said, ())
    at_s, about = manifest.created_at_s, manifest.about
    documents, tokens = about.get("num_documents", 0), about.get("num_tokens", 0)
    said = Fact("state", "complete", "reported", path, at_s, True)
    size = Fact("size", f"{documents:,} documents, {tokens:,} tokens", "measured", path, at_s, tokens, "tokens")
    return Subject("dataset", folder.name, said, (size,))


def nothing_yet(sort: str) -> Fact:
    """What an empty part of the status says."""
    cures = {
        "run": ("no run here", "dflashctl train start"),
        "server": ("no server was started here", "dflashctl deploy up --server NAME"),
        "benchmark": ("nothing was benchmarked here", "dflashctl bench --server NAME"),
        "dataset": ("no dataset here", "dflashctl data tokenize"),
    }
    return unknown(sort, *cures[sort])
