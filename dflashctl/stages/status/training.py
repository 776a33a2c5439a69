"""A run as a subject: its state held against its process, what it says of itself, and what was measured of it."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dflashctl.artifacts import RunRef
from dflashctl.errors import DflashctlError
from dflashctl.facts.runs import RunState, read_record, state_if_readable
from dflashctl.facts.stage_loads import limiting_of, recent_loads
from dflashctl.stages.status.fact import Fact, Subject, unknown, unreadable
from dflashctl.stages.status.measured import Benchmark, Evaluation, served_tau, tau_facts
from dflashctl.stages.status.trend import pace_s, trend
from dflashctl.transport.base import Transport
from dflashctl.transport.tail import find_last_event, read_across
from dflashctl_remote.spec.errors import BundleError
from dflashctl_remote.spec.events import Started, Step, Validated

SILENT_AFTER_S = 120.0
"""A run that trains speaks at every step; after so long without a word what it said is old."""
SILENT_AFTER_STEPS = 5.0
"""... or after the time of so many steps, where steps are slow."""
NUM_PIECES, PIECE_BYTES = 12, 64 * 1024
"""Of the account, some 60 steps each: enough to see a rise at any time of the run, whatever its length."""
PACE_STEPS = 200


def run_subject(
    ref: RunRef, evaluations: Sequence[Evaluation], benchmarks: Sequence[Benchmark], transport: Transport, now_s: float
) -> Subject:
    state = state_if_readable(ref, transport, now_s=now_s)
    facts: list[Fact] = []
    silent_after_s = SILENT_AFTER_S
    try:
        pieces = [] if state.state == "unreadable" else _pieces(ref)
        pace = pace_s(_last_steps(pieces))
        silent_after_s = max(SILENT_AFTER_S, SILENT_AFTER_STEPS * (pace or 0.0))
        facts += _told(state, pieces, pace, silent_after_s)
        if state.state != "unreadable":
            facts += _validated(ref)
    except (DflashctlError, OSError) as error:
        facts.append(unreadable("account", str(ref.events_path), str(error)))
    facts += [*_checkpoint(ref, state), *_stop(ref, state), _recipe(ref)]
    facts += [*tau_facts(ref, evaluations), served_tau(ref, benchmarks)]
    return Subject("run", ref.run_id, _state(ref, state, silent_after_s), tuple(facts))


def _state(ref: RunRef, state: RunState, silent_after_s: float) -> Fact:
    is_active = state.state in ("running", "starting")
    step = state.last_step
    warning = ""
    if state.state == "unreadable":
        warning = state.detail
    elif state.state == "finished" and step is not None and step.step < step.num_steps:
        warning = f"it says that it finished, and its last step is {step.step:,} of {step.num_steps:,}"
    at_s = state.last_event_at_s
    if at_s is None and is_active and ref.token_path.is_file():
        at_s = ref.token_path.stat().st_mtime
    process = f"process {state.pid}, " if is_active and state.pid is not None else ""
    return Fact(
        name="state",
        text=state.state if not state.detail or state.state == "unreadable" else f"{state.state}: {state.detail}",
        kind="live" if process else "reported",
        source=f"{process}{ref.events_path}",
        at_s=at_s,
        value=state.state,
        warning=warning,
        stale_after_s=silent_after_s if is_active else None,
    )


def _told(state: RunState, pieces: list[list[Any]], pace: float | None, silent_after_s: float) -> list[Fact]:
    """What the run's own events say."""
    step = state.last_step
    if step is None:
        return []
    is_running = state.state == "running"

    def reported(name: str, text: str, value: float, unit: str = "", warning: str = "") -> Fact:
        stale_after_s = silent_after_s if is_running else None
        return Fact(name, text, "reported", str(state.run.events_path), step.at_s, value, unit, warning, stale_after_s)

    went = trend([[event for event in piece if isinstance(event, Step)] for piece in pieces])
    rate = step.context_tokens_per_s
    facts = [reported("step", f"{step.step:,} of {step.num_steps:,}", step.step, "steps")]
    if went is not None:
        facts.append(reported("loss", went.text, went.loss, "nats", went.warning))
    accuracy = f"{100 * step.accuracy:.1f} %, teacher-forced: not an acceptance"
    throughput = f"{rate:,.0f} context tokens/s at r = {step.block_ratio:.2f}"
    facts += [
        reported("accuracy", accuracy, step.accuracy),
        reported("throughput", throughput, rate, "context tokens/s"),
    ]
    facts += _stages(pieces, reported)
    facts.append(reported("peak memory", f"{step.peak_memory_bytes / 2**30:.1f} GiB", step.peak_memory_bytes, "bytes"))
    if is_running and pace is not None:
        left_s = pace * (step.num_steps - step.step)
        text = f"{_coarse(left_s)}, at the {pace:.3g} s a step of late"
        source = str(state.run.events_path)
        facts.append(Fact("time left", text, "estimated", source, step.at_s, left_s, "s", "", silent_after_s))
    return facts


def _stages(pieces: list[list[Any]], reported: Callable[..., Fact]) -> list[Fact]:
    """What its stages did of late, where they run side by side."""
    steps = _last_steps(pieces)
    loads = recent_loads(steps)
    limiting = next((load for load in loads if load.name == limiting_of(loads)), None)
    if limiting is None:
        return []
    others = ", ".join(f"{load.name} {100 * load.busy:.0f} %" for load in loads if load is not limiting)
    text = f"{limiting.name} sets the pace, busy {100 * limiting.busy:.0f} % of the time ({others})"
    queues = ", ".join(f"{queue.name} {queue.depth} of {queue.capacity}" for queue in steps[-1].queues)
    return [reported("stages", f"{text}; waiting: {queues}", limiting.busy)]


def _validated(ref: RunRef) -> list[Fact]:
    """The run's own newest measurement on held-out prompts; nothing where it made none."""
    event = find_last_event(ref.events_path, "validated")
    if not isinstance(event, Validated) or event.tau is None:
        return []
    sure = "" if event.tau_low is None or event.tau_high is None else f" [{event.tau_low:.2f}, {event.tau_high:.2f}]"
    text = (
        f"{event.tau:.2f}{sure} at step {event.step:,}, {event.num_prompts} held-out prompts, "
        f"{event.num_verify_steps:,} verify steps"
    )
    says = f" ({event.parity.says})" if event.parity.says else ""
    warning = "" if event.parity.is_passed else f"parity gate: {event.parity.verdict}{says}"
    source, unit = str(ref.events_path), "tokens a verify step"
    return [Fact("validated tau", text, "measured", source, event.at_s, event.tau, unit, warning)]


def _pieces(ref: RunRef) -> list[list[Any]]:
    return read_across(ref.events_path, num_pieces=NUM_PIECES, piece_bytes=PIECE_BYTES)


def _last_steps(pieces: list[list[Any]]) -> list[Step]:
    """Those of the newest process: what lies between two processes is no pace."""
    events = pieces[-1] if pieces else []
    begin = max((place for place, event in enumerate(events) if isinstance(event, Started)), default=0)
    return [event for event in events[begin:] if isinstance(event, Step)][-PACE_STEPS:]


def _checkpoint(ref: RunRef, state: RunState) -> list[Fact]:
    """What lies on the disk counts; what the run said of it is held against it."""
    complete = ref.checkpoints()
    said = state.last_checkpoint.step if state.last_checkpoint is not None else None
    if not complete:
        if said is not None:
            warning = f"the run says that it saved step {said:,}, and no complete one is there"
            return [Fact("checkpoint", "none", "live", str(ref.folder / "checkpoints"), warning=warning)]
        return [unknown("checkpoint", "no complete one yet", ref.command("watch"))]
    newest = complete[-1]
    path = newest.folder / "manifest.json"
    try:
        at_s = newest.manifest().created_at_s
    except (DflashctlError, BundleError) as error:
        return [unreadable("checkpoint", str(path), str(error))]
    warning = ""
    if said is not None and newest.step is not None and said > newest.step:
        warning = f"the run says that it saved step {said:,}, and no complete one is there"
    text = f"step {newest.step:,}, {len(complete)} kept"
    return [Fact("checkpoint", text, "reported", str(path), at_s, newest.step, "steps", warning)]


def _stop(ref: RunRef, state: RunState) -> list[Fact]:
    """A stop that was asked for and has not come yet."""
    if state.state not in ("running", "starting") or not ref.stop_path.is_file():
        return []
    try:
        asked = json.loads(ref.stop_path.read_bytes())
        who, when_s = str(asked["who"]), float(asked["when_s"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        return [unreadable("stop", str(ref.stop_path), f"{type(error).__name__}: {error}")]
    return [Fact("stop", f"asked for by {who}, not there yet", "reported", str(ref.stop_path), when_s, who)]


def _recipe(ref: RunRef) -> Fact:
    try:
        record = read_record(ref)
    except DflashctlError as error:
        return unreadable("recipe", str(ref.record_path), error.message)
    code = f"bundle {record.bundle_sha[:12]}"
    if record.git_sha is not None:
        code += f", git {record.git_sha[:12]}" + (" and changes" if record.is_git_dirty else "")
    text = f"target {Path(record.train.target).name}, dataset {Path(record.train.dataset).name}, {code}"
    return Fact("recipe", text, "reported", str(ref.record_path), record.created_at_s, record.bundle_sha)


def _coarse(seconds_s: float) -> str:
    """An estimate needs no seconds once it is minutes."""
    if seconds_s < 120:
        return f"about {seconds_s:.0f} s"
    if seconds_s < 7200:
        return f"about {seconds_s / 60:.0f} min"
    return f"about {seconds_s / 3600:.1f} h" if seconds_s < 172_800 else f"about {seconds_s / 86_400:.1f} d"
