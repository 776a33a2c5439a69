"""The one door of every job on a host: reads its spec, runs it, and turns each way it can end into an event
and an exit code. Nothing of what a job does is decided here.

Exit codes: 0 finished, or stopped by request; the code of a BundleError; 2 a spec that cannot be read;
4 disk full; 130 interrupted; 1 a bug, whose traceback is in the event and not on stderr.
"""

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar

from pydantic import ValidationError

from dflashctl_remote.spec.base import Spec
from dflashctl_remote.spec.errors import BadInput, BundleError, is_disk_full
from dflashctl_remote.spec.events import Event, EventLog, Failed, Finished, Started, Stopped

S = TypeVar("S", bound=Spec)


class StoppedEarly(Exception):
    """Raised by a body that stopped on request in good order, its state on disk."""

    def __init__(self, reason: str, *, checkpoint: str | None = None, exit_code: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.checkpoint = checkpoint
        self.exit_code = exit_code


class Terminated(KeyboardInterrupt):
    """SIGTERM, raised where Ctrl-C would be."""


def run_entry(
    job: str,
    spec_class: type[S],
    body: Callable[[S, EventLog], dict[str, Any]],
    *,
    before: Callable[[S], None] | None = None,
    log: type[EventLog] = EventLog,
) -> NoReturn:
    """Parse `--spec FILE --events FILE`, run `body(spec, events)` and exit.

    What body returns is `Finished.about`. `before(spec)` runs ahead of the `started` event, for which torch may be
    imported: what it refuses is refused at once.
    SIGTERM raises Terminated, a KeyboardInterrupt, in the body, so that its `finally` blocks run.
    """
    files = job_files(job)
    signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        events = log(files.events)
    except OSError as error:
        print(f"{job}: cannot write events to {files.events}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    sys.exit(_run(job, spec_class, body, before, files.spec, events))


@dataclass(frozen=True)
class JobFiles:
    spec: Path
    events: Path


def job_files(job: str) -> JobFiles:
    """The two files named on the command line, for a body that needs to know where its spec lies."""
    parser = argparse.ArgumentParser(prog=f"python -m dflashctl_remote.entry.{job}")
    parser.add_argument("--spec", type=Path, required=True, help="JSON file that says what to do")
    parser.add_argument("--events", type=Path, required=True, help="file that events are appended to")
    arguments = parser.parse_args()
    return JobFiles(arguments.spec, arguments.events)


def _run(
    job: str,
    spec_class: type[S],
    body: Callable[[S, EventLog], dict[str, Any]],
    before: Callable[[S], None] | None,
    spec_path: Path,
    events: EventLog,
) -> int:
    try:
        spec = read_spec(spec_path, spec_class)
        if before is not None:
            before(spec)
        events.emit(Started(job=job, pid=os.getpid(), device=_device_of(spec)))
        events.emit(Finished(about=body(spec, events)))
        return 0
    except StoppedEarly as stop:
        _close(job, events, Stopped(reason=stop.reason, checkpoint=stop.checkpoint), stop.reason)
        return stop.exit_code
    except KeyboardInterrupt as interrupt:
        reason = "terminated (SIGTERM)" if isinstance(interrupt, Terminated) else "interrupted (Ctrl-C)"
        _close(job, events, Stopped(reason=reason), reason)
        return 130
    except Exception as error:  # noqa: BLE001 - the door: every other way to end becomes an event
        failed = failure_of(error)
        sentence = f"{failed.message} ({failed.hint})" if failed.hint else failed.message
        _close(job, events, failed, sentence)
        return failed.exit_code


def read_spec(path: Path, spec_class: type[S]) -> S:
    """The spec in a JSON file; raises BadInput naming the file, the key and what was found."""
    try:
        return spec_class.model_validate_json(path.read_bytes())
    except OSError as error:
        raise BadInput(f"cannot read the spec {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the file"
        more = f", and {error.error_count() - 1} more" if error.error_count() > 1 else ""
        raise BadInput(f"{path}: {key}: {first['msg']}, found {_shortened(repr(first['input']))}{more}") from error


def failure_of(error: Exception) -> Failed:
    """The event for an exception: a sentence and its exit code, with the traceback only if it is a bug."""
    name = type(error).__name__
    if isinstance(error, BundleError):
        return Failed(error=name, message=error.message, hint=error.hint, exit_code=error.exit_code)
    if is_disk_full(error):
        where = getattr(error, "filename", None) or "a file of this job"
        return Failed(
            error=name,
            message=f"the disk is full: {where} could not be written",
            hint="free space there and run the same command again",
            exit_code=4,
        )
    return Failed(
        error=name,
        message=f"bug: {name}: {error}",
        hint="the traceback is in the events file",
        exit_code=1,
        traceback="".join(traceback.format_exception(error)),
    )


def _device_of(spec: Spec) -> str:
    """The device that the job will use; a job whose spec names none runs on the CPU."""
    asked = getattr(spec, "device", None) or getattr(getattr(spec, "train", None), "device", None)
    if asked is None:
        return "cpu"
    if asked != "auto":
        return str(asked)
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _close(job: str, events: EventLog, event: Event, sentence: str) -> None:
    # A full disk refuses this last event too, and the log on it the sentence: the exit code still gets out.
    with suppress(OSError):
        print(f"{job}: {sentence}", file=sys.stderr)
    with suppress(OSError):
        events.emit(event)
        events.close()


def _shortened(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _raise_terminated(signum: int, frame: FrameType | None) -> None:
    raise Terminated
