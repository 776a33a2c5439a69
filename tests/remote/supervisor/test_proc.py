import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys

import pytest

from dflashctl.transport import process
from dflashctl.transport.shell import Script
from dflashctl_remote.spec.process import MARKER
from supervised_jobs import SUPERVISOR, is_alive, path_without, state_of, until

M = f"{random.getrandbits(128):032x}"
"""A marker that no other test has, nor this one elsewhere on this machine."""
WAITS = "import sys; print('up', flush=True); sys.stdin.read()"


@pytest.fixture(params=["python3", "no python3"])
def tools(request, tmp_path_factory, monkeypatch):
    """With python3, and without: the answers are the same."""
    if request.param == "no python3":
        monkeypatch.setenv("PATH", path_without(tmp_path_factory.getbasetemp() / "without-python3", "python3"))
        assert shutil.which("python3") is None
    return request.param


@pytest.fixture
def ask(flavour):
    """Runs a piece of sh that may call what is in proc.sh, and gives what it prints."""

    def run(text: str, **values: str) -> str:
        family_py = (SUPERVISOR / "family.py").read_text()
        source = (SUPERVISOR / "proc.sh").read_text() + "\nset -u\nLC_ALL=C\n" + text
        answer = flavour.shell().run(Script("ask", source, (*values.items(), ("family_py", family_py))))
        assert answer.code == 0, answer.err
        return answer.out.decode().strip()

    return run


@pytest.fixture
def child():
    """Starts processes that wait for their stdin to close, and ends them and all that they name."""
    started = []

    def start(code: str = WAITS, **changes) -> subprocess.Popen[bytes]:
        started.append(
            subprocess.Popen(
                [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, **changes
            )
        )
        assert started[-1].stdout.readline() == b"up\n"
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.communicate()


def token(process_id: int, marker: str = M, **changes) -> str:
    return process.token_of(process_id, marker).model_copy(update=changes).model_dump_json()


def presence(ask, text: str) -> str:
    return ask('token_presence "$token"; printf %s "$presence"', token=text)


def family(ask, text: str) -> set[int]:
    return {int(pid) for pid in ask('token_family "$token" /nowhere; printf %s "$family"', token=text).split()}


def marked(value: str) -> dict[str, str]:
    return {**os.environ, MARKER: value}


def test_a_living_process_is_known_again(ask, child):
    assert presence(ask, token(child().pid)) == "alive"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"start_ticks": 2**40}, "gone"),
        ({"uid": 12345}, "gone"),
        ({"boot_id": "other"}, "another boot"),
        ({"pid_namespace": 1}, "another namespace"),
        ({"pid": 1}, "gone"),
        ({"pid": 0}, "gone"),
    ],
)
def test_a_token_that_is_not_the_process_s_is_told_apart(ask, child, changes, expected):
    pid = child().pid
    if "start_ticks" in changes:
        # One tick off; and older than PID 1, that is, from before this container was started.
        changes = {"start_ticks": max(0, process.token_of(pid, "m").start_ticks + changes["start_ticks"])}
    assert presence(ask, token(pid, **changes)) == expected


@pytest.mark.parametrize("text", ["", "{}", '{"pid": "x"}', "not json"])
def test_what_is_no_token_is_unreadable(ask, text):
    assert presence(ask, text) == "unreadable"


def test_a_zombie_is_gone(ask, child):
    one = child()
    text = token(one.pid)
    os.kill(one.pid, signal.SIGKILL)
    until(lambda: state_of(one.pid) == "Z")
    assert presence(ask, text) == "gone"


@pytest.mark.parametrize("name", ["a) S 1 (b", "two\nlines)", "back\\slash *"])
def test_a_name_with_parentheses_and_line_ends_is_read(ask, child, name):
    one = child(f"open('/proc/self/comm', 'w').write({name!r}); {WAITS}")
    assert presence(ask, token(one.pid)) == "alive"


@pytest.mark.parametrize("marker", ['/a b/it\'s "quoted"', "/back\\slash/n", "/grüße"])
@pytest.mark.parametrize("indent", [None, 2])
def test_a_marker_that_is_a_path_is_read_from_json(ask, child, marker, indent):
    text = process.token_of(child().pid, marker).model_dump_json(indent=indent)
    assert ask('token_fields "$token"; printf %s "$token_marker"', token=text) == marker


def test_a_pid_without_a_number_is_nobody(ask):
    for pid in ("", "abc", "1/../2", "-1"):
        assert ask('proc_stat "$pid" || printf nobody', pid=pid) == "nobody"


def test_the_family_is_found_by_marker_wherever_it_is(ask, tools, child, tmp_path):
    marker = str(tmp_path / "it's")
    leader = child(env=marked(marker))
    other = child(env=marked(marker), start_new_session=True)
    child(env=marked(marker + "x"))
    # Looks like the marker, and is part of another variable.
    child(env={**os.environ, "OTHER": f"a\n{MARKER}={marker}\nb"})
    assert family(ask, token(leader.pid, marker)) == {leader.pid, other.pid}


def test_what_started_before_the_run_is_not_of_its_family(ask, tools, child):
    older, leader = child(env=marked(M)), child(env=marked(M))
    ticks = process.token_of(leader.pid, "m").start_ticks
    if ticks > process.token_of(older.pid, "m").start_ticks:
        assert family(ask, token(leader.pid)) == {leader.pid}


def test_members_of_the_session_and_children_count_without_a_marker(ask, tools, child):
    code = (
        "import os, subprocess, sys\n"
        "run = [sys.executable, '-S', '-c', 'import sys; sys.stdin.read()']\n"
        "one = subprocess.Popen(run, env={})\n"
        "two = subprocess.Popen(run, env={}, start_new_session=True)\n"
        "print('up', flush=True)\nprint(one.pid, two.pid, flush=True)\nsys.stdin.read()"
    )
    leader = child(code, env=marked(M), start_new_session=True)
    below = {int(pid) for pid in leader.stdout.readline().split()}
    text = token(leader.pid)
    assert family(ask, text) == {leader.pid, *below}
    leader.kill()
    leader.wait()
    # A session without anybody who is known could be a stranger's.
    assert family(ask, text) == set()


def test_members_are_told_in_one_line(ask, tools, child):
    ticks = process.token_of(child(env=marked(M)).pid, "m").start_ticks
    child(env=marked(M))
    found = ask(f'family_find {M} {ticks} {os.getuid()} $$ 0 ""; printf %s "$members"')
    assert len(found.splitlines()) == 1
    assert len(found.split(" ")) == 2


def test_a_session_that_was_ours_still_is_for_whoever_began_in_time(ask, tools, child):
    one = child(start_new_session=True)
    mine = process.token_of(one.pid, "m")
    find = f'family_find none 0 {os.getuid()} $$ 0 "" s{one.pid}:{{ticks}}; printf %s "$members"'
    assert ask(find.format(ticks=mine.start_ticks)) == f"{one.pid}:{mine.start_ticks}"
    assert ask(find.format(ticks=mine.start_ticks - 1)) == ""


def test_whoever_can_write_to_the_log_belongs_to_the_run(ask, tools, child):
    reading, writing = os.pipe()
    inode = os.readlink(f"/proc/self/fd/{writing}")
    writer = child(pass_fds=[writing], start_new_session=True)
    child(pass_fds=[reading])
    ticks = process.token_of(writer.pid, "m").start_ticks
    find = f'family_find none {ticks} {os.getuid()} $$ "$supervisor" {inode}; printf %s "$members"'
    try:
        assert ask(find, supervisor="0") == f"{writer.pid}:{ticks}"
        # The supervisor's own helpers hold it too.
        assert ask(find, supervisor=str(os.getsid(writer.pid))) == ""
    finally:
        os.close(reading)
        os.close(writing)


IN_NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
ASKS_IN_SESSION_0 = """
import os, subprocess, sys
reading, writing = os.pipe()
writer = subprocess.Popen(["sleep", "1000"], pass_fds=[writing])
assert os.getsid(writer.pid) == 0
asked = subprocess.run([*sys.argv[1:], os.readlink(f"/proc/self/fd/{writing}")], capture_output=True, text=True)
print(asked.stdout.replace(str(writer.pid), "the writer"), asked.stderr)
"""


def test_a_session_begun_outside_of_the_container_is_no_supervisors(flavour, tools, tmp_path):
    """Its number reads 0 within: the same as the number that stands for no supervisor."""
    if subprocess.run([*IN_NAMESPACE, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("PID namespaces are not allowed here")
    script = tmp_path / "script"
    script.write_text(
        (SUPERVISOR / "proc.sh").read_text()
        + f"\nfamily_py={shlex.quote((SUPERVISOR / 'family.py').read_text())}\n"
        + 'about="none 0 $(id -u) $$ 0 $1"; family_find $about; echo "found ${members%%:*}"\n'
        + 'family_kill 0 $about; echo "killed ${killed%%:*}, left ${members:-nobody}"\n'
    )
    asker = [sys.executable, "-S", "-c", ASKS_IN_SESSION_0, flavour.sh, str(script)]
    done = subprocess.run([*IN_NAMESPACE, *asker], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["found the writer", "killed the writer, left nobody"]


def test_whoever_asks_is_never_of_the_family(flavour, tools, tmp_path):
    """Nor what is above it or below it, though all of them carry the marker here."""
    text = (
        (SUPERVISOR / "proc.sh").read_text()
        + f"\nfamily_py='{(SUPERVISOR / 'family.py').read_text().replace(chr(39), chr(39) + chr(92) + chr(39) * 2)}'\n"
        + f'sleep 1000 & below=$!; ( family_find {M} 0 "$(id -u)" $$ 0 ""; echo "found $members" )\n'
        + 'kill "$below"\n'
    )
    script = tmp_path / "script"
    script.write_text(text)
    # Something above the shell, too.
    code = f"import subprocess; subprocess.run([{flavour.sh!r}, {str(script)!r}])"
    done = subprocess.run([sys.executable, "-S", "-c", code], env=marked(M), capture_output=True, text=True, check=True)
    assert done.stdout == "found \n"


def test_a_signal_reaches_the_very_process_and_no_other(ask, tools, child):
    meant, other = child(), child()
    ticks = process.token_of(meant.pid, "m").start_ticks
    stale = process.token_of(other.pid, "m").start_ticks - 1
    ask(f"proc_send TERM {meant.pid}:{ticks} {other.pid}:{stale} 1:{stale} 0:1 4194304:1")
    assert meant.wait() == -signal.SIGTERM
    assert is_alive(other.pid)


def test_a_session_s_zombies_are_not_of_the_family(ask, tools, child):
    code = (
        "import os, sys, time\npid = os.fork()\nif pid == 0: os._exit(0)\n"
        "os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)\nprint('up', flush=True); sys.stdin.read()"
    )
    leader = child(code, env=marked(M), start_new_session=True)
    assert family(ask, token(leader.pid)) == {leader.pid}


def test_tokens_written_by_the_shell_are_read_by_python(ask):
    text = ask(
        "proc_here && proc_stat $$ && printf "
        '\'{"boot_id":"%s","pid":%s,"start_ticks":%s,"pid_namespace":%s,"uid":%s,"marker":"m"}\' '
        '"$here_boot" $$ "$stat_ticks" "$here_namespace" "$here_uid"'
    )
    mine = process.token_of(os.getpid(), "m")
    told = json.loads(text)
    assert (told["boot_id"], told["pid_namespace"], told["uid"]) == (mine.boot_id, mine.pid_namespace, mine.uid)
    assert told["start_ticks"] >= mine.start_ticks
