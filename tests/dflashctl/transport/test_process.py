import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dflashctl.transport import process
from dflashctl_remote.spec.process import MARKER


@pytest.fixture
def sleeper():
    """Starts processes that wait for their stdin to close, and ends all of them."""
    started = []

    def start(code: str = "import sys; sys.stdin.read()", **env: str) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [sys.executable, "-c", f"print('up', flush=True)\n{code}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **env},
        )
        started.append(child)
        assert child.stdout.readline() == b"up\n"
        return child

    yield start
    for child in started:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()


def test_a_living_process_is_known_again(sleeper):
    token = process.token_of(sleeper().pid, "m")
    assert process.presence(token) == "alive"
    assert token.uid == os.getuid()


def test_another_process_with_the_same_pid_is_not_the_one(sleeper):
    child = sleeper()
    stale = process.token_of(child.pid, "m").model_copy(update={"start_ticks": 2**40})
    assert process.presence(stale) == "gone"
    assert process.send(stale, signal.SIGKILL) is False
    assert child.poll() is None


@pytest.mark.parametrize("changed", [{"boot_id": "other"}, {"pid_namespace": 1}])
def test_a_token_of_another_boot_or_namespace_reaches_nobody(sleeper, changed):
    child = sleeper()
    foreign = process.token_of(child.pid, "m").model_copy(update=changed)
    assert process.presence(foreign).startswith("another")
    assert process.send(foreign, signal.SIGKILL) is False
    assert child.poll() is None


def test_a_zombie_has_ended(sleeper):
    child = sleeper()
    token = process.token_of(child.pid, "m")
    assert process.send(token, signal.SIGKILL)
    assert process.wait_gone(token, 10.0)
    # Not waited for yet, so its entry is still there.
    assert Path(f"/proc/{child.pid}").exists()
    assert process.presence(token) == "gone"


def test_waiting_for_one_that_stays_says_so(sleeper):
    assert process.wait_gone(process.token_of(sleeper().pid, "m"), 0.0) is False


def test_a_name_with_spaces_and_parentheses_is_read(sleeper):
    child = sleeper("import sys; open('/proc/self/comm', 'w').write('a) S 1 (b'); print('named', flush=True); "
                    "sys.stdin.read()")  # fmt: skip
    assert child.stdout.readline() == b"named\n"
    token = process.token_of(child.pid, "m")
    assert token.start_ticks > 1000
    assert process.presence(token) == "alive"


def test_the_family_is_found_by_marker_in_other_sessions_too(sleeper, tmp_path):
    grandchild = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'], start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()"
    )
    marker = str(tmp_path)
    leader = sleeper(grandchild, **{MARKER: marker})
    other = int(leader.stdout.readline())
    stranger = sleeper(**{MARKER: marker + "x"})
    token = process.token_of(leader.pid, marker)
    assert {member.pid for member in process.family(token)} == {leader.pid, other}
    # The leader's end changes nothing for the rest.
    leader.kill()
    leader.wait()
    (left,) = process.family(token)
    assert left.pid == other
    assert process.send(left, signal.SIGKILL)
    assert stranger.poll() is None


def test_the_family_holds_members_of_its_session_that_lost_the_marker(sleeper, tmp_path):
    script = (
        "import os, subprocess, sys\n"
        "os.setsid()\n"
        "run = [sys.executable, '-c', 'import sys; sys.stdin.read()']\n"
        "bare = subprocess.Popen(run, env={})\n"
        "print(bare.pid, flush=True)\n"
        "sys.stdin.read()"
    )
    leader = sleeper(script, **{MARKER: str(tmp_path)})
    bare = int(leader.stdout.readline())
    token = process.token_of(leader.pid, str(tmp_path))
    members = {member.pid: member for member in process.family(token)}
    assert set(members) == {leader.pid, bare}
    # Without one that is known for certain, a session of that number could be a stranger's.
    leader.kill()
    leader.wait()
    assert process.family(token) == ()
    assert process.send(members[bare], signal.SIGKILL)


def test_whoever_asks_is_never_of_the_family(tmp_path):
    code = (
        "import os\n"
        "from dflashctl.transport import process\n"
        f"print(process.family(process.token_of(os.getpid(), {str(tmp_path)!r})))"
    )
    paths = os.pathsep.join(path for path in sys.path if path)
    asked = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, MARKER: str(tmp_path), "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert asked.stdout == "()\n"


@pytest.mark.parametrize("changed", [{"uid": 12345}, {"pid": 0}, {"pid": -1}])
def test_a_token_of_another_user_or_of_no_process_reaches_nobody(sleeper, changed):
    child = sleeper()
    wrong = process.token_of(child.pid, "m").model_copy(update=changed)
    assert process.presence(wrong) == "gone"
    assert process.send(wrong, signal.SIGKILL) is False
    assert child.poll() is None


@pytest.mark.parametrize("pid", [0, 1, -1])
def test_pids_that_stand_for_more_than_one_process_are_nobody(pid):
    assert process.token_of(pid, "m") is None


def test_ctrl_c_waits_for_the_end_of_what_must_not_be_half_done():
    done = []
    with pytest.raises(KeyboardInterrupt):  # noqa: SIM117 - the inner one ends before
        with process.interrupts_held():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("the rest")
    assert done == ["the rest"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
