"""Where this tool keeps what it remembers between commands, on the machine where you type."""

import os
from pathlib import Path


def state_folder() -> Path:
    """$XDG_STATE_HOME/dflashctl, else ~/.local/state/dflashctl; there or not."""
    given = os.environ.get("XDG_STATE_HOME", "")
    base = Path(given) if given.startswith("/") else Path.home() / ".local" / "state"
    return base / "dflashctl"
