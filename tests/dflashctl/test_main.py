import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

INTERRUPTED_WHILE_LOADING = """
import sys

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == "dflashctl.cli.app":
            raise KeyboardInterrupt

sys.meta_path.insert(0, CtrlC())
from dflashctl.__main__ import script
script()
"""


def test_ctrl_c_while_modules_load_is_a_word_and_130():
    path = os.pathsep.join((str(ROOT), str(ROOT / "remote")))
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_WHILE_LOADING],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 130
    assert done.stderr == "dflashctl: interrupted\n"
