"""The one door for errors: what went wrong becomes a sentence, a hint and an exit code. Tracebacks on --debug only."""

import contextlib
import os
import sys
import traceback
from collections.abc import Callable

import typer

from dflashctl.cli.output import print_error
from dflashctl.errors import DflashctlError, JobFailed
from dflashctl_remote.spec.errors import BundleError, is_disk_full

READER_GONE = 128 + 13
"""As shells report a process that SIGPIPE ended."""


def guarded(body: Callable[[], object], *, is_debug: bool = False, is_json: bool = False) -> int:
    """Run `body` and return the exit code of the process; what is raised is printed here and nowhere else."""
    try:
        result = body()
        if sys.stdout is not None:
            # Here, not at the interpreter's end, which has no sentence for a full disk.
            sys.stdout.flush()
    except (DflashctlError, BundleError) as error:
        _report(error, type(error).__name__, error.message, error.hint, error.exit_code, is_debug, is_json)
        return error.exit_code
    except typer.TyperException as error:
        hint = "dflashctl --help"
        context = getattr(error, "ctx", None)
        if context is not None:
            hint = f"{context.command_path} --help"
        _report(error, "UsageError", error.format_message(), hint, 2, is_debug, is_json)
        return 2
    except (KeyboardInterrupt, typer.Abort) as error:
        _report(error, "Interrupted", "interrupted", "", 130, is_debug, is_json)
        return 130
    except (BrokenPipeError, SystemExit):
        # Whoever read our output has gone (`| head`); typer and rich make a SystemExit of it.
        _forget_stdout()
        result = READER_GONE
    except OSError as error:
        code = 4 if is_disk_full(error) else 2
        _report(error, type(error).__name__, _sentence(error), "", code, is_debug, is_json)
        return code
    except Exception as error:  # noqa: BLE001 - the door
        message = f"bug: {type(error).__name__}: {error}"
        _report(error, type(error).__name__, message, "run it again with --debug", 1, is_debug, is_json)
        return 1
    return result if isinstance(result, int) else 0


def _forget_stdout() -> None:
    """What is still buffered goes nowhere, so that the interpreter does not complain of it at its end."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        stdout = sys.stdout.fileno()
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout)


def _sentence(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename is not None else ""
    return f"{where}{error.strerror or error}"


def _report(
    error: BaseException,
    name: str,
    message: str,
    hint: str,
    exit_code: int,
    is_debug: bool,
    is_json: bool,
) -> None:
    trace = ""
    if is_debug:
        trace = "".join(traceback.format_exception(error))
        if isinstance(error, JobFailed) and error.traceback:
            trace += f"\nin the job on {error.host}:\n{error.traceback}"
    if is_json:
        document = {"name": name, "message": message, "hint": hint, "exit_code": exit_code}
        print_error({**document, "traceback": trace} if is_debug else document)
        return
    if trace:
        print(trace, file=sys.stderr)
    print(f"dflashctl: {message}", file=sys.stderr)
    if hint:
        print(f"  next: {hint}", file=sys.stderr)
