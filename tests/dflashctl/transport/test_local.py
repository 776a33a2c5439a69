import os
import signal
import subprocess
import sys

from dflashctl_remote.spec.process import MARKER

TALK = """
import json, sys
with open(sys.argv[1], "a") as file:
    for message in ("one", "two"):
        file.write(json.dumps({"kind": "notice", "at_s": 1.0, "message": message}) + "\\n")
print("out"); print("err", file=sys.stderr)
"""
WAIT = """
import json, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
def emit(message):
    with open(sys.argv[1], "a") as file:
        file.write(json.dumps({"kind": "notice", "at_s": 1.0, "message": message}) + "\\n")
try:
    emit("ready")
    signal.pause()
except KeyboardInterrupt:
    emit("tidied up")
    sys.exit(130)
"""
STUBBORN = WAIT.replace("signal.default_int_handler", "signal.SIG_IGN").replace(
    "signal.pause()", "\n    while True: signal.pause()"
)


def test_events_come_until_the_child_has_ended(transport, child):
    handle = transport.start(child(TALK))
    assert [event.message for event in handle.events()] == ["one", "two"]
    assert handle.wait() == 0


def test_both_outputs_go_to_the_log(transport, child):
    handle = transport.start(child(TALK))
    handle.wait()
    assert sorted(handle.log_tail(5).splitlines()) == ["err", "out"]


def test_who_a_detached_child_was_is_known_though_it_ended_at_once(transport, child):
    handle = transport.start(child("", is_detached=True, env=((MARKER, "m"),)))
    handle.wait()
    assert (handle.token.pid, handle.token.marker) == (handle.pid, "m")
    assert transport.presence(handle.token) == "gone"


def test_end_of_the_log_is_of_this_process_alone(transport, child):
    transport.start(child(TALK)).wait()
    handle = transport.start(child("print('only this')"))
    handle.wait()
    assert handle.log_tail(5) == "only this"


def test_lock_lets_one_in_and_names_it_to_the_other(transport, tmp_path):
    with transport.lock(tmp_path / "lock") as first, transport.lock(tmp_path / "lock") as second:
        assert (first, second) == (None, os.getpid())
    with transport.lock(tmp_path / "lock") as third:
        assert third is None


def test_earlier_events_of_the_file_are_not_told_again(transport, child):
    transport.start(child(TALK)).wait()
    handle = transport.start(child(TALK))
    assert len(list(handle.events())) == 2


def test_interrupt_lets_the_child_stop_in_good_order(transport, child):
    handle = transport.start(child(WAIT))
    events = handle.events()
    assert next(events).message == "ready"
    handle.interrupt()
    assert [event.message for event in events] == ["tidied up"]
    assert handle.wait() == 130


def test_kill_ends_a_child_that_does_not_listen(transport, child):
    handle = transport.start(child(STUBBORN))
    next(handle.events())
    handle.interrupt()
    handle.kill()
    assert handle.wait() == -signal.SIGKILL


def test_child_is_in_a_group_of_its_own(transport, child):
    handle = transport.start(child(WAIT))
    next(handle.events())
    group = os.getpgid(handle.pid)
    handle.kill()
    assert group == handle.pid != os.getpgid(0)


def test_environment_of_the_job_is_added(transport, child):
    code = "import os; print(os.environ['GREETING'])"
    handle = transport.start(child(code, env=(("GREETING", "hello"),)))
    handle.wait()
    assert handle.log_tail(1) == "hello"


def test_process_is_alive_only_with_its_marker(transport):
    assert transport.is_alive(os.getpid(), "pytest") or transport.is_alive(os.getpid(), sys.executable)
    assert not transport.is_alive(os.getpid(), "a-marker-that-this-process-does-not-carry")


def test_process_that_is_gone_is_not_alive(transport):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert not transport.is_alive(gone.pid, "")


def test_missing_modules_are_named_without_importing_any(transport):
    assert transport.missing_modules(("json", "no_such_module_here")) == ("no_such_module_here",)


def test_git_says_commit_and_whether_it_is_dirty(transport, tmp_path):
    assert transport.git(tmp_path) is None

    def git(*arguments):
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        subprocess.run(("git", "-C", tmp_path, *identity, *arguments), check=True, capture_output=True)

    git("init")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-m", "one")
    clean = transport.git(tmp_path)
    (tmp_path / "file").write_text("two")
    dirty = transport.git(tmp_path)
    assert (clean.is_dirty, dirty.is_dirty) == (False, True)
    assert clean.sha == dirty.sha and len(clean.sha) == 40
