"""How the training runs of this machine do, read straight from their folders. Changes nothing."""

import time

from pydantic import ValidationError

from dflashctl.artifacts import RunRef
from dflashctl.errors import ArtifactError
from dflashctl.facts.run_state import START_S, RunState, Seen, State, judge, told_in
from dflashctl.transport.base import Transport
from dflashctl.transport.tail import find_last_event, read_tail
from dflashctl_remote.spec.process import ExitRecord
from dflashctl_remote.spec.train import RunRecord

__all__ = ["START_S", "RunState", "State", "is_running", "read_record", "state_if_readable", "state_of"]

TAIL_BYTES = 512 * 1024
"""Some 500 steps; what happened before is looked for only if it must be, and then by its kind alone."""


def read_record(run: RunRef) -> RunRecord:
    """Raises ArtifactError."""
    try:
        return RunRecord.model_validate_json(run.record_path.read_bytes())
    except OSError as error:
        raise ArtifactError(f"{run.record_path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]["msg"]
        raise ArtifactError(f"{run.record_path} cannot be read as a run's record: {first}") from error


def state_of(run: RunRef, transport: Transport, *, now_s: float | None = None) -> RunState:
    """From the end of the run's events, its process and its exit record. Raises ArtifactError."""
    # The process first: what it says at its end is then not missed.
    seen = _seen(run, transport)
    told = told_in(*read_tail(run.events_path, TAIL_BYTES), _events_at(run), run.events_path)
    if told.at_s is not None and any((run.folder / "checkpoints").glob("step-*")):
        # A long way back: checkpoints and validations are rare where steps are many.
        if told.saved is None:
            told.saved = find_last_event(run.events_path, "checkpoint")
        if told.validated is None:
            told.validated = find_last_event(run.events_path, "validated")
    if told.at_s is not None and told.started is None and seen.token is None:
        told.started = find_last_event(run.events_path, "started")
    # No Linux, so no token: the pid and the command line must do.
    is_told = seen.token is None and told.started is not None and told.end is None
    if is_told and told.started is not None and is_running(run, told.started.pid, transport):
        pid = told.started.pid
        return RunState(run, "running", told.at_s, told.step, told.saved, pid, last_validated=told.validated)
    return judge(run, told, seen, time.time() if now_s is None else now_s)


def state_if_readable(run: RunRef, transport: Transport, *, now_s: float | None = None) -> RunState:
    """For a list: one damaged run must not hide the others."""
    try:
        return state_of(run, transport, now_s=now_s)
    except (ArtifactError, OSError) as error:
        return RunState(run, "unreadable", None, None, None, None, str(error))


def is_running(run: RunRef, pid: int, transport: Transport) -> bool:
    """Whether the process that the run's events name is there; of a run without token."""
    return transport.is_alive(pid, str(run.record_path))


def _seen(run: RunRef, transport: Transport) -> Seen:
    token = run.token()
    if token is not None and token.folder_inode not in (None, run.folder.stat().st_ino):
        raise ArtifactError(f"{run.token_path} is another run's: the folder, or that file, was copied from it")
    presence = None if token is None else transport.presence(token)
    end = None if presence is None else _exit(run)
    living: tuple[int, ...] = ()
    if token is not None and presence == "gone" and end is None:
        living = tuple(sorted(member.pid for member in transport.family(token)))
    return Seen(
        token,
        presence,
        run.token_path.stat().st_mtime if token is not None else None,
        end,
        (run.folder / "attempts").is_dir(),
        living=living,
        record_at_s=run.record_path.stat().st_mtime if run.record_path.is_file() else None,
    )


def _events_at(run: RunRef) -> int | None:
    """Where the events of the newest attempt begin; None for a run without supervisor."""
    for attempt in sorted((run.folder / "attempts").glob("[0-9]*"), reverse=True):
        try:
            return int((attempt / "events_at").read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            return None
    return None


def _exit(run: RunRef) -> ExitRecord | None:
    path = run.folder / "exit.json"
    try:
        return ExitRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise ArtifactError(f"{path} cannot be read as the end of a run") from error
