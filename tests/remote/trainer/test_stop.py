import os
import signal
import subprocess
import sys

import pytest

from dflashctl_remote.trainer.stop import StopRequest


def test_nothing_is_asked_at_first(tmp_path):
    with StopRequest(tmp_path) as stop:
        assert not stop.is_asked()


def test_handlers_are_given_back(tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with StopRequest(tmp_path):
        pass
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.parametrize(
    ("number", "reason"), [(signal.SIGINT, "interrupted (Ctrl-C)"), (signal.SIGTERM, "terminated (SIGTERM)")]
)
def test_first_signal_is_noted(tmp_path, number, reason):
    with StopRequest(tmp_path) as stop:
        os.kill(os.getpid(), number)
        assert (stop.is_asked(), stop.reason(), stop.exit_code) == (True, reason, 130)


def test_second_ctrl_c_raises(tmp_path):
    with StopRequest(tmp_path), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_after_sigterm_is_a_first_one(tmp_path):
    with StopRequest(tmp_path) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.exit_code == 130


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"who": "anna", "when_s": 3}', "asked to stop by anna"),
        ("", "stop.requested was found"),
        ("[]", "stop.requested was found"),
    ],
)
def test_file_asks_too_and_says_who(tmp_path, text, reason):
    (tmp_path / "stop.requested").write_text(text)
    with StopRequest(tmp_path) as stop:
        assert (stop.is_asked(), stop.reason(), stop.exit_code) == (True, reason, 0)
        stop.take()
        assert not stop.is_asked()


def test_sigterm_that_follows_the_file_is_the_same_request(tmp_path):
    with StopRequest(tmp_path) as stop:
        (tmp_path / "stop.requested").write_text('{"who": "anna", "when_s": 3}')
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.reason() == "asked to stop by anna"
        stop.take()
        assert stop.exit_code == 0


def test_a_process_that_still_writes_a_checkpoint_leaves_with_its_own_exit_code_and_at_once():
    code = (
        "import atexit, threading\n"
        "from dflashctl_remote.trainer.stop import leave\n"
        "atexit.register(print, 'taken down in order')\n"
        "threading.Thread(target=threading.Event().wait, name='writer', daemon=True).start()\n"
        "leave(130)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
