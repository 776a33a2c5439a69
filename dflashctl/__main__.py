"""The way in, `dflashctl` and `python -m dflashctl`: light, so that Ctrl-C while the rest loads is no traceback."""

import atexit
import gc
import os
import signal
import sys
import threading


def script() -> None:
    """The installed command. SIGTERM ends it as Ctrl-C does, so that a job is told to stop as well."""
    # A command makes objects by the hundred thousand while it loads, and none of them is garbage.
    gc.set_threshold(50_000)
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        from dflashctl.cli.app import main
    except KeyboardInterrupt:
        print("dflashctl: interrupted", file=sys.stderr)
        sys.exit(130)
    leave(main())


def leave(code: int) -> None:
    """End with this exit code, and without taking the interpreter apart: that takes as long as many a command.

    What would run at the end runs all the same. Where a thread must be waited for, or an output takes nothing more,
    it is left to Python, which waits, or says so.
    """
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        sys.exit(code)
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        sys.exit(code)
    os._exit(code)


if __name__ == "__main__":
    script()
