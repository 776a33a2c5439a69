"""How the training runs of any host do, asked by one script; judged as those of this machine are."""

from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

from pydantic import ValidationError

from dflashctl.artifacts import RunRef, Workdir
from dflashctl.bundle import bundle_root
from dflashctl.errors import ArtifactError, ConfigError, JobFailed
from dflashctl.facts.run_state import RunState, Seen, judge, told_in
from dflashctl.transport.files import read_script
from dflashctl.transport.process import Presence
from dflashctl.transport.shell import Script, Shell
from dflashctl_remote.spec.events import CheckpointSaved, Validated, parse_event
from dflashctl_remote.spec.process import ExitRecord, ProcessToken
from dflashctl_remote.spec.train import RunRecord

TAIL_BYTES = 16 * 1024
"""Some fifteen steps."""
PRESENCES: dict[str, Presence] = {
    "alive": "alive",
    "gone": "gone",
    "another boot": "another boot",
    "another namespace": "another namespace",
}


@dataclass(frozen=True)
class HostRuns:
    host: str
    workdir: str
    """As the host has it: absolute."""
    now_s: float
    """By the host's clock, which its ages are counted from."""
    states: tuple[RunState, ...]


@dataclass(frozen=True)
class HostRun:
    """One run, with its record."""

    state: RunState
    record: RunRecord | None
    """None: run.json cannot be read."""
    now_s: float


def supervisor_functions(*names: str) -> str:
    """The functions that the supervisor's scripts and ours share."""
    return read_script(bundle_root() / "dflashctl_remote" / "supervisor", *names)


def runs_on(shell: Shell, workdir: str, *, options: str = "", timeout_s: float = 30.0) -> HostRuns:
    """All runs of a work folder, by name; `options` as in RunRef. Raises HostUnreachable."""
    return _parse(shell.name, _ask(shell, workdir, "", timeout_s), options)


def run_on(shell: Shell, workdir: str, run_id: str, *, options: str = "") -> HostRun:
    """One run, damaged or not; `options` as in RunRef.

    Raises ConfigError for a name that is none or that no run has, naming those that there are, HostUnreachable.
    """
    Workdir(Path(workdir)).new_run(run_id)
    out = _ask(shell, workdir, run_id, 30.0)
    found = _parse(shell.name, out, options)
    if not found.states:
        known = ", ".join(state.run.run_id for state in runs_on(shell, workdir).states) or "none"
        raise ConfigError(
            f"there is no run {run_id} in {found.workdir} on {shell.name} (there: {known})",
            hint=f"dflashctl train list{options or f' --host {shell.name}'}",
        )
    (state,) = found.states
    (told,) = _runs(out)[1]
    try:
        record = RunRecord.model_validate_json(told.get("record", ""))
    except ValidationError:
        record = None
    return HostRun(state, record, found.now_s)


def seen_in(lines: dict[str, str]) -> Seen:
    """What run_seen.sh told. Raises ArtifactError for what cannot be read."""
    try:
        token = ProcessToken.model_validate_json(lines["token"]) if lines["token"] else None
        end = ExitRecord.model_validate_json(lines["exit"]) if lines["exit"] else None
    except ValidationError as error:
        raise ArtifactError("its token.json or exit.json cannot be read") from error
    if token is not None and lines["presence"] == "another run":
        raise ArtifactError("its token.json is another run's: the folder, or that file, was copied from it")
    if token is not None and lines["presence"] not in PRESENCES:
        raise ArtifactError(f"whether its process {token.pid} lives cannot be told: {lines['presence']}")
    return Seen(
        token,
        PRESENCES[lines["presence"]] if token is not None else None,
        float(lines["token_at"]) if lines.get("token_at") else None,
        end if token is not None else None,
        "supervised" in lines,
        lines["job"] != "gone",
        tuple(int(pid) for pid in lines["living"].split()),
        float(lines["record_at"]) if lines.get("record_at") else None,
    )


def _ask(shell: Shell, workdir: str, run_id: str, timeout_s: float) -> bytes:
    text = supervisor_functions("proc.sh") + read_script(Path(__file__).parent, "run_seen.sh", "host_runs.sh")
    values = (("workdir", workdir), ("run_id", run_id), ("tail_bytes", str(TAIL_BYTES)))
    answer = shell.run(Script("runs", text, values), timeout_s=timeout_s)
    if answer.code != 0:
        raise JobFailed(f"the runs of {shell.name} could not be listed: {answer.err.strip()}", host=shell.name)
    return answer.out


def _parse(host: str, out: bytes, options: str) -> HostRuns:
    head, runs = _runs(out)
    workdir, now_s = head["workdir"], float(head["now"])
    folder = Path(workdir) / "runs"
    refs = [RunRef(told["run"], folder / told["run"], host, options) for told in runs]
    return HostRuns(host, workdir, now_s, tuple(map(_state, refs, runs, repeat(now_s))))


def _state(run: RunRef, lines: dict[str, str], now_s: float) -> RunState:
    try:
        seen = seen_in(lines)
        events_at = int(lines["events_at"]) if lines.get("events_at") else None
        content = lines["tail"].encode("utf-8", "surrogateescape")
        told = told_in(int(lines["tail_from"]), content, events_at, run.events_path)
        if told.saved is None and lines.get("saved"):
            event = parse_event(lines["saved"])
            told.saved = event if isinstance(event, CheckpointSaved) else None
        if told.validated is None and lines.get("validated"):
            event = parse_event(lines["validated"])
            told.validated = event if isinstance(event, Validated) else None
    except (ArtifactError, ValidationError) as error:
        return RunState(run, "unreadable", None, None, None, None, str(error))
    return judge(run, told, seen, now_s)


def _runs(out: bytes) -> tuple[dict[str, str], list[dict[str, str]]]:
    """The lines before the first run, and those of each."""
    head: dict[str, str] = {}
    runs: list[dict[str, str]] = []
    at = 0
    while at < len(out):
        line_end = out.index(b"\n", at)
        key, _, value = _text(out[at:line_end]).partition("=")
        at = line_end + 1
        if key == "run":
            runs.append({})
        if key == "tail":
            size = int(value)
            value, at = _text(out[at : at + size]), at + size + 1
        (runs[-1] if runs else head)[key] = value
    return head, runs


def _text(raw: bytes) -> str:
    """So that a name that is not UTF-8 comes back as the same bytes."""
    return raw.decode("utf-8", "surrogateescape")
