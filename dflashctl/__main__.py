"""The way in, `dflashctl` and `python -m dflashctl`: light, so that Ctrl-C while the rest loads is no traceback."""

import signal
import sys


def script() -> None:
    """The installed command. SIGTERM ends it as Ctrl-C does, so that a job is told to stop as well."""
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        from dflashctl.cli.app import main
    except KeyboardInterrupt:
        print("dflashctl: interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(main())


if __name__ == "__main__":
    script()
