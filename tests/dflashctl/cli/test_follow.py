import pytest

from dflashctl.cli.follow import Watcher, follow_to_end
from dflashctl.cli.output import Output
from dflashctl.errors import Interrupted, JobFailed
from dflashctl.views.job import JobBoard
from dflashctl_remote.spec.events import Notice, Stopped

EMIT = """
import json, sys
def emit(kind, **fields):
    with open(sys.argv[1], "a") as file:
        file.write(json.dumps({"kind": kind, "at_s": 1.0, **fields}) + "\\n")
"""
WAIT = (
    EMIT
    + """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    emit("notice", message="ready")
    signal.pause()
except KeyboardInterrupt:
    emit("stopped", reason="interrupted")
    sys.exit(130)
"""
)
DEAF = EMIT + "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); emit('notice', message='ready')\n"
DEAF += "while True: signal.pause()"


class InterruptingWatcher(Watcher):
    """Presses Ctrl-C when it sees certain events."""

    def __init__(self, out, *kinds):
        super().__init__(out, JobBoard("test", lambda: 0.0))
        self._kinds = kinds
        self.remarks = []

    def add(self, event):
        super().add(event)
        if isinstance(event, self._kinds):
            raise KeyboardInterrupt

    def remark(self, text, until_s=None):
        super().remark(text, until_s)
        self.remarks.append(text)


def follow(transport, job, *kinds, grace_s=60.0):
    watcher = InterruptingWatcher(Output(), *kinds)
    handle = transport.start(job)
    return watcher, lambda: follow_to_end(handle, watcher, host="local", resume_hint="say it again", grace_s=grace_s)


def test_what_a_finished_job_says_is_handed_on(transport, child):
    _, to_end = follow(transport, child(EMIT + "emit('finished', about={'n': 3})"))
    assert to_end().about == {"n": 3}


def test_failed_event_becomes_the_error_with_its_exit_code(transport, child):
    code = EMIT + "emit('failed', error='BadInput', message='bad row', hint='mend it', exit_code=2); sys.exit(2)"
    _, to_end = follow(transport, child(code))
    with pytest.raises(JobFailed, match="bad row") as caught:
        to_end()
    assert (caught.value.exit_code, caught.value.hint) == (2, "mend it")


def test_job_without_a_last_word_shows_the_end_of_its_log(transport, child):
    _, to_end = follow(transport, child("import sys; print('No space for this'); sys.exit(9)"))
    with pytest.raises(JobFailed, match=r"(?s)exit code 9.*No space for this") as caught:
        to_end()
    assert caught.value.exit_code == 4


def test_job_killed_by_a_signal_says_which(transport, child):
    _, to_end = follow(transport, child("import os; os.kill(os.getpid(), 9)"))
    with pytest.raises(JobFailed, match="killed by signal 9"):
        to_end()


def test_ctrl_c_lets_the_job_stop_and_says_how_to_go_on(transport, child):
    watcher, to_end = follow(transport, child(WAIT), Notice)
    with pytest.raises(Interrupted) as caught:
        to_end()
    assert caught.value.hint == "say it again"
    assert isinstance(watcher.last, Stopped)
    assert "Ctrl-C again to kill" in watcher.remarks[0]


def test_end_of_the_grace_kills_a_job_that_does_not_stop(transport, child):
    watcher, to_end = follow(transport, child(DEAF), Notice, grace_s=0.0)
    with pytest.raises(Interrupted):
        to_end()
    assert isinstance(watcher.last, Notice)


def test_second_ctrl_c_kills(transport, child):
    code = WAIT.replace("sys.exit(130)", "\n    while True: signal.pause()")
    watcher, to_end = follow(transport, child(code), Notice, Stopped)
    with pytest.raises(Interrupted):
        to_end()
    assert watcher.remarks[-1] == "killed"


def test_job_stopped_by_request_is_no_error(transport, child):
    _, to_end = follow(transport, child(EMIT + "emit('stopped', reason='asked to')"))
    assert to_end().stopped.reason == "asked to"


def test_job_terminated_from_elsewhere_is_interrupted(transport, child):
    _, to_end = follow(transport, child(EMIT + "emit('stopped', reason='SIGTERM'); sys.exit(130)"))
    with pytest.raises(Interrupted, match="from elsewhere: SIGTERM"):
        to_end()


def test_without_a_terminal_events_are_lines_on_stderr(transport, child, capsys):
    _, to_end = follow(transport, child(EMIT + "emit('notice', message='two rows skipped'); emit('finished')"))
    to_end()
    captured = capsys.readouterr()
    assert captured.err.splitlines() == ["note: two rows skipped", "finished"]
    assert captured.out == ""
