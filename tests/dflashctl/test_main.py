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


LEAVES = """
import atexit, sys, threading, time
from dflashctl.__main__ import leave
atexit.register(lambda: print("at the end"))
{before}
print("told")
leave(3)
print("never")
"""


def left(before: str, **options) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(ROOT), str(ROOT / "remote")))
    return subprocess.run(
        [sys.executable, "-c", LEAVES.format(before=before)],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
        **{"stdout": subprocess.PIPE, **options},
    )


def test_leaving_runs_what_is_to_run_at_the_end_and_keeps_every_word():
    done = left("")
    assert (done.returncode, done.stdout, done.stderr) == (3, "told\nat the end\n", "")


def test_leaving_waits_for_a_thread_that_is_at_work():
    done = left("threading.Thread(target=lambda: (time.sleep(0.2), print('done'))).start()")
    assert (done.returncode, done.stdout) == (3, "told\ndone\nat the end\n")


def test_leaving_without_a_stdout_keeps_the_exit_code():
    done = left("sys.stdout.close(); sys.stdout = None; print = lambda *words: None")
    assert (done.returncode, done.stderr) == (3, "")


def test_leaving_with_a_full_disk_is_not_taken_for_success():
    with open("/dev/full", "w") as full:
        done = left("", stdout=full)
    assert done.returncode not in (0, 3)
    assert "No space left" in done.stderr
