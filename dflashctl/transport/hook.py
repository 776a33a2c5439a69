"""A command of the user's own, run here by sh, with words in its environment."""

import os
import subprocess
from collections.abc import Mapping


def run_hook(command: str, about: Mapping[str, str]) -> int:
    """Its exit code. What it prints goes to stderr: stdout is for results."""
    return subprocess.run(
        ["/bin/sh", "-c", command], env={**os.environ, **about}, stdin=subprocess.DEVNULL, stdout=2, check=False
    ).returncode
