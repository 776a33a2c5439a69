"""How the training runs of any host do, asked by one script; judged as those of this machine are."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from dflashctl.artifacts import RunRef
from dflashctl.bundle import bundle_root
from dflashctl.errors import ArtifactError, ConfigError, JobFailed
from dflashctl.facts.run_state import RunState, Seen, Told, judge
from dflashctl.transport.files import read_script
from dflashctl.transport.process import Presence
from dflashctl.transport.shell import Script, Shell
from dflashctl.transport.tail import parse_lines
from dflashctl_remote.spec.events import CheckpointSaved, parse_event
from dflashctl_remote.spec.process import ExitRecord, ProcessToken
from dflashctl_remote.spec.train import RunRecord

TAIL_BYTES = 16 * 1024
"""Some twenty steps."""
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
    record: RunRecord
    now_s: float


def supervisor_functions(*names: str) -> str:
    """The functions that the supervisor's scripts and ours share."""
    return read_script(bundle_root() / "dflashctl_remote" / "supervisor", *names)


def runs_on(shell: Shell, workdir: str, *, timeout_s: float = 30.0) -> HostRuns:
    """All runs of a work folder, by name. Raises HostUnreachable."""
    return _parse(shell.name, _ask(shell, workdir, "", timeout_s))


def run_on(shell: Shell, workdir: str, run_id: str) -> HostRun:
    """Raises ConfigError naming the runs that there are, ArtifactError for a damaged one, HostUnreachable."""
    out = _ask(shell, workdir, run_id, 30.0)
    found = _parse(shell.name, out)
    if not found.states:
        known = ", ".join(state.run.run_id for state in runs_on(shell, workdir).states) or "none"
        raise ConfigError(
            f"there is no run {run_id} in {found.workdir} on {shell.name} (there: {known})",
            hint=f"dflashctl train list --host {shell.name}",
        )
    (state,) = found.states
    if state.state == "unreadable":
        raise ArtifactError(f"run {run_id} on {shell.name}: {state.detail}")
    (told,) = _runs(out)[1]
    try:
        record = RunRecord.model_validate_json(told["record"])
    except ValidationError as error:
        first = error.errors()[0]["msg"]
        raise ArtifactError(f"{state.run.record_path} on {shell.name} is not a run's record: {first}") from error
    return HostRun(state, record, found.now_s)


def seen_in(lines: dict[str, str]) -> Seen:
    """What run_seen.sh told. Raises ArtifactError for what cannot be read."""
    try:
        token = ProcessToken.model_validate_json(lines["token"]) if lines["token"] else None
        end = ExitRecord.model_validate_json(lines["exit"]) if lines["exit"] else None
    except ValidationError as error:
        raise ArtifactError("its token.json or exit.json cannot be read") from error
    if token is not None and lines["presence"] not in PRESENCES:
        raise ArtifactError(f"whether its process {token.pid} lives cannot be told: {lines['presence']}")
    return Seen(
        token,
        PRESENCES[lines["presence"]] if token is not None else None,
        float(lines["token_at"]) if lines.get("token_at") else None,
        end if token is not None else None,
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


def _parse(host: str, out: bytes) -> HostRuns:
    head, runs = _runs(out)
    workdir, now_s = head["workdir"], float(head["now"])
    return HostRuns(host, workdir, now_s, tuple(_state(host, workdir, told, now_s) for told in runs))


def _state(host: str, workdir: str, lines: dict[str, str], now_s: float) -> RunState:
    run = RunRef(lines["run"], Path(workdir) / "runs" / lines["run"], host)
    try:
        seen = seen_in(lines)
        _, _, whole = lines["tail"].partition("\n") if len(lines["tail"]) >= TAIL_BYTES else ("", "", lines["tail"])
        told = Told(parse_lines(whole.encode("utf-8", "surrogateescape"), run.events_path))
        if told.saved is None and lines.get("saved"):
            event = parse_event(lines["saved"])
            told.saved = event if isinstance(event, CheckpointSaved) else None
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
