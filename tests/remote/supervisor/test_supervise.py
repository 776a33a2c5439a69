import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dflashctl.errors import JobFailed
from dflashctl.operations.launch import launch
from dflashctl.operations.stop import stop
from dflashctl.transport import process
from dflashctl_remote.spec.process import MARKER, ExitRecord, ProcessToken
from supervised_jobs import (
    HAS_CHILDREN,
    IS_DEAF,
    NUM_CHILDREN,
    NUM_WITH_MARKER,
    SAVES,
    SLEEPS,
    SUPERVISOR,
    carriers,
    gated,
    is_alive,
    make_job,
    path_without,
    state_of,
    until,
)


class Run:
    """A run that was launched, looked at beside the code under test."""

    def __init__(self, shell, job, nonce):
        self.shell, self.job, self.nonce = shell, job, nonce
        self.folder = Path(job.folder)

    @property
    def token(self) -> ProcessToken:
        return ProcessToken.model_validate_json((self.folder / "token.json").read_bytes())

    @property
    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""

    @property
    def job_pid(self) -> int:
        return int((self.folder / "attempts/0001/job").read_text().partition(":")[0])

    def says(self, text: str) -> None:
        until(lambda: text in self.log, f"{text} in the log")

    def end(self) -> ExitRecord:
        until((self.folder / "exit.json").exists, "exit.json")
        return ExitRecord.model_validate_json((self.folder / "exit.json").read_bytes())

    def stop(self, grace_s=1.0):
        return stop(self.shell, self.job.folder, who="a test", grace_s=grace_s)


@pytest.fixture
def workdir(tmp_path):
    folder = tmp_path / 'it\'s a "work" $(folder) ünï'
    folder.mkdir()
    return folder


@pytest.fixture
def start(flavour, workdir):
    """Launches a job and gives the run, whether it came up or not; ends all that is left."""
    started = []

    def run(code, **changes) -> Run:
        job = make_job(workdir, code, sh=flavour.sh, **changes)
        nonce = f"{random.getrandbits(128):032x}"
        started.append(Run(flavour.shell(), job, nonce))
        launch(started[-1].shell, job, nonce=nonce, settle_s=0.1)
        return started[-1]

    yield run
    for one in started:
        if (one.folder / "token.json").exists():
            process.send(one.token, signal.SIGKILL)
        for pid in carriers(one.nonce):
            os.kill(pid, signal.SIGKILL)


def test_the_token_is_the_supervisor_s_own(start):
    run = start(SLEEPS)
    token = run.token
    assert process.presence(token) == "alive"
    mine = {"folder_inode": run.folder.stat().st_ino}
    assert token == process.token_of(token.pid, run.nonce).model_copy(update=mine)
    # Leads a session, and does not carry the marker that its job does.
    assert os.getsid(token.pid) == token.pid
    assert set(carriers(run.nonce)) == {run.job_pid}
    assert os.getsid(run.job_pid) == run.job_pid


def test_output_of_both_kinds_is_in_the_log_and_input_is_empty(start):
    run = start("import sys; print('out', repr(sys.stdin.read())); print('err', file=sys.stderr); " + SLEEPS)
    run.says("up")
    assert run.log == "out ''\nerr\nup\n"


def test_a_job_has_default_signals_and_nothing_open_but_its_three(start):
    run = start(f"print(open('/proc/self/status').read(), flush=True); {SLEEPS}")
    run.says("up")
    masks = dict(line.split(":\t") for line in run.log.splitlines() if line.startswith("Sig"))
    # Python itself ignores SIGPIPE and SIGXFSZ; of the others what whoever started all this ignores stays ignored.
    mine = Path("/proc/self/status").read_text().splitlines()
    inherited = dict(line.split(":\t") for line in mine if line.startswith("Sig"))["SigIgn"]
    asked_for = sum(1 << (number - 1) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM))
    others = int(inherited, 16) & ~asked_for | 1 << 12 | 1 << 24
    assert int(masks["SigIgn"], 16) & ~others == 0
    assert set(os.listdir(f"/proc/{run.job_pid}/fd")) == {"0", "1", "2"}


def test_the_job_is_told_its_locale_its_port_and_its_gpus(start):
    code = (
        "import os; print(*(os.environ.get(name) for name in "
        "('LC_ALL', 'PYTHONUNBUFFERED', 'CUDA_VISIBLE_DEVICES', 'MASTER_PORT', 'MINE')), flush=True); " + SLEEPS
    )
    run = start(code, gpus=("GPU-b", "GPU-a"), needs_port=True, env=(("MINE", "a 'b' \"c\" $d\ne"),))
    run.says("up")
    (port,) = (run.job.workdir and Path(run.job.workdir, "leases")).glob("port-*")
    assert run.log == f"C.UTF-8 1 GPU-b,GPU-a {port.name[5:]} a 'b' \"c\" $d\ne\nup\n"


@pytest.mark.parametrize(
    ("ending", "code", "number"),
    [
        ("sys.exit(0)", 0, None),
        ("sys.exit(7)", 7, None),
        ("sys.exit(127)", 127, None),
        ("os.kill(os.getpid(), 9)", 137, 9),
        ("os.kill(os.getpid(), 15)", 143, 15),
        ("os.abort()", 134, 6),
    ],
)
def test_how_the_job_ended_is_written_down(start, tmp_path, ending, code, number):
    gate = tmp_path / "gate"
    run = start(gated(gate, ending))
    gate.touch()
    end = run.end()
    assert (end.code, end.signal, end.stop, end.restarts, end.swept) == (code, number, False, 0, ())
    until(lambda: not is_alive(run.token.pid))


def test_the_log_is_whole_when_the_end_is_written(start, tmp_path):
    gate = tmp_path / "gate"
    content = random.Random(4).randbytes(2**20)
    (tmp_path / "content").write_bytes(content)
    ending = (
        f"whole = open({str(tmp_path / 'content')!r}, 'rb').read()\nwhile whole: whole = whole[os.write(1, whole):]"
    )
    run = start(
        gated(gate, ending),
        log_limit_bytes=100_000,
        num_logs=100,
    )
    gate.touch()
    run.end()
    pieces = {int(path.name[4:]): path.read_bytes() for path in run.folder.glob("log.*")}
    stream = b"".join(piece for _, piece in sorted(pieces.items())) + (run.folder / "log").read_bytes()
    assert stream == content
    assert len(pieces) >= 9


def test_a_job_that_is_asked_may_save_and_says_how_it_ended(start):
    run = start(SAVES)
    run.says("up")
    proof = run.stop(60.0)
    end = run.end()
    assert run.log == "up\nsaved\n"
    assert (end.code, end.stop, end.swept) == (130, True, ())
    assert (proof.outcome, proof.exit_code, proof.killed, proof.survivors) == ("ended when asked", 130, (), ())


def test_a_deaf_job_is_killed_when_the_grace_is_over(start):
    run = start(IS_DEAF)
    run.says("up")
    pid = run.job_pid
    # Nobody but the supervisor counts the seconds.
    (run.folder / "stop.requested").write_text('{"who":"me","when_s":1,"grace_s":0}')
    os.kill(run.token.pid, signal.SIGTERM)
    end = run.end()
    assert (end.code, end.signal, end.stop) == (137, 9, True)
    assert not is_alive(pid)


def test_a_stop_that_came_before_the_job_starts_none(flavour, workdir, tmp_path):
    """The note is there when the supervisor begins: it was a stop during the start."""
    folder = workdir / "run"
    record = folder / "attempts/0001"
    record.mkdir(parents=True)
    (folder / "job.sh").write_text(f"touch {tmp_path / 'started'}\n")
    (folder / "supervise.conf").write_text(
        f"marker=abc\nworkdir={tmp_path}\nsh={flavour.sh}\ngrace_s=1\nnum_restarts=3\nrestart_delay_s=0\nsettle_cs=0\n"
        "log_limit_bytes=1000000\nnum_logs=2\nport=\nleases=\n"
    )
    (folder / "stop.requested").write_text('{"who":"me","when_s":1,"grace_s":5}')
    subprocess.run([flavour.sh, str(SUPERVISOR / "supervise.sh"), str(folder), "0001"], check=True)
    end = ExitRecord.model_validate_json((folder / "exit.json").read_bytes())
    assert (end.code, end.stop) == (0, True)
    assert ProcessToken.model_validate_json((folder / "token.json").read_bytes()).marker == "abc"
    assert not (tmp_path / "started").exists()


def test_an_attempt_has_one_supervisor_ever(start, flavour):
    run = start(SLEEPS)
    token = run.token
    subprocess.run([flavour.sh, str(SUPERVISOR / "supervise.sh"), str(run.folder), "0001"], check=True)
    assert run.token == token
    assert len(carriers(run.nonce)) == 1


def test_what_a_job_leaves_behind_is_ended_with_it(start, tmp_path):
    gate = tmp_path / "gate"
    run = start(gated(gate, "sys.exit(3)", before=f"{HAS_CHILDREN}\nprint('up', flush=True)"))
    run.says("up")
    until(lambda: len(carriers(run.nonce)) >= NUM_WITH_MARKER + 1)
    children = children_of(run)
    assert len(children) == NUM_CHILDREN
    gate.touch()
    end = run.end()
    assert end.code == 3
    # All but one: it has no marker, its session is its own, and when the job was gone so was its parent.
    lost = [pid for pid in children if is_alive(pid)]
    for pid in lost:
        os.kill(pid, signal.SIGKILL)
    assert len(lost) <= 1
    assert carriers(run.nonce) == {}


def children_of(run) -> list[int]:
    """Ground truth: by parent, by marker, by the log held open."""
    pipe = (run.folder / "attempts/0001/pipe").read_text().strip()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) in (run.job_pid, os.getpid()):
            continue
        try:
            parent = int((folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            session = os.getsid(int(folder.name))
            holds = os.readlink(folder / "fd/1") == pipe and session != run.token.pid
            if parent == run.job_pid or holds or f"{MARKER}={run.nonce}".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    # The deaf one's own sleep comes and goes.
    return [
        pid for pid in found if state_of(pid) and b"0.5" not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    ]


def test_all_of_a_job_with_children_is_stopped(start):
    run = start(f"{HAS_CHILDREN}\n{IS_DEAF}")
    run.says("up")
    children = children_of(run)
    assert len(children) == NUM_CHILDREN
    proof = run.stop(0.0)
    assert proof.survivors == ()
    assert [pid for pid in (*children, run.job_pid) if is_alive(pid)] == []
    assert set(run.end().swept) >= set(children)


def test_one_that_goes_on_forking_is_overtaken(start):
    """Its number is another one fifty times a second, and so is its session."""
    code = """
import os, time
if os.fork() == 0:
    end = time.time() + 100
    while time.time() < end:
        os.setsid()
        if os.fork():
            os._exit(0)
        time.sleep(0.02)
        if os.fork():
            os._exit(0)
    os._exit(0)
"""
    run = start(f"{code}\n{IS_DEAF}")
    run.says("up")
    assert run.stop(0.0).survivors == ()
    assert carriers(run.nonce) == {}


def test_a_bad_end_is_followed_by_restarts_and_noted(start, tmp_path):
    counter, gate = tmp_path / "counter", tmp_path / "gate"
    run = start(gated(gate, "sys.exit(9)", before=f"open({str(counter)!r}, 'a').write('x')"), num_restarts=2)
    gate.touch()
    end = run.end()
    assert (end.code, end.restarts, counter.read_text()) == (9, 2, "xxx")
    assert "the job ended with exit code 9: restart 2 of 2" in run.log


@pytest.mark.parametrize("code", [0, 2, 5, 130])
def test_some_ends_are_final(start, tmp_path, code):
    gate = tmp_path / "gate"
    run = start(gated(gate, f"sys.exit({code})"), num_restarts=2)
    gate.touch()
    end = run.end()
    assert (end.code, end.restarts) == (code, 0)


def test_a_stop_while_it_waits_to_restart_is_the_end(start, tmp_path):
    gate = tmp_path / "gate"
    run = start(gated(gate, "sys.exit(9)"), num_restarts=5, restart_delay_s=1000.0)
    gate.touch()
    run.says("restart 1 of 5")
    proof = run.stop()
    end = run.end()
    assert (end.code, end.stop, proof.outcome) == (9, True, "ended when asked")


def test_a_job_that_never_came_up_is_not_restarted(start):
    with pytest.raises(JobFailed, match="exit code 9"):
        start("import sys; sys.exit(9)", num_restarts=5)


def test_a_supervisor_that_is_killed_does_not_take_its_job_along(start):
    run = start(f"import time; print('up', flush=True); time.sleep(0.5)\n{SLEEPS.replace('up', 'still here')}")
    os.kill(run.token.pid, signal.SIGKILL)
    run.says("still here")
    assert not (run.folder / "exit.json").exists()
    proof = run.stop(5.0)
    assert (proof.outcome, proof.survivors) == ("ended when asked", ())
    assert carriers(run.nonce) == {}
    assert run.end().stop


def test_secrets_are_the_job_s_alone(start, tmp_path):
    value = f"s3cr3t-{random.getrandbits(64):x}-'\"$x"
    run = start(
        f"import os; print(len(os.environ['TOKEN']), flush=True); {SLEEPS}", secrets=(("TOKEN", value), ("OTHER", "o"))
    )
    run.says("up")
    assert run.log.startswith(f"{len(value)}\n")
    raw = value.encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            assert raw not in (folder / "cmdline").read_bytes()
            assert int(folder.name) == run.job_pid or raw not in (folder / "environ").read_bytes()
        except OSError:
            continue
    for path in Path(run.job.workdir).rglob("*"):
        if path.is_file() and path.name != "secrets.env":
            assert b"s3cr3t" not in path.read_bytes(), path
    assert (run.folder / "secrets.env").stat().st_mode & 0o777 == 0o600


def test_nothing_that_is_written_is_for_others(start):
    os.umask(before := os.umask(0))
    assert before != 0o077
    run = start(SLEEPS, gpus=("GPU-1",))
    assert [path for path in Path(run.job.workdir).rglob("*") if path.lstat().st_mode & 0o077] == []


@pytest.mark.parametrize(
    "missing", [("python3",), ("setsid",), ("python3", "env", "sync", "mkfifo", "stat", "timeout")]
)
def test_what_a_host_lacks_is_done_without(start, monkeypatch, tmp_path_factory, missing):
    folder = tmp_path_factory.getbasetemp() / f"without-{'-'.join(missing)}"
    monkeypatch.setenv("PATH", path_without(folder, *missing))
    run = start(f"{HAS_CHILDREN}\n{IS_DEAF}", needs_port=True)
    run.says("up")
    children = children_of(run)
    assert len(children) == NUM_CHILDREN
    assert run.stop(0.0).survivors == ()
    assert [pid for pid in children if is_alive(pid)] == []
    assert carriers(run.nonce) == {}


def test_what_is_told_of_the_end_is_one_json_object(start):
    run = start(SLEEPS)
    run.stop()
    assert set(json.loads((run.folder / "exit.json").read_text())) == {
        "code", "signal", "at_s", "stop", "killed", "restarts", "swept", "oom_kills",
    }  # fmt: skip


def test_a_second_stop_may_be_less_patient(start):
    run = start(IS_DEAF)
    run.says("up")
    code = (
        "from dflashctl.operations.stop import stop; from dflashctl.transport.local_shell import LocalShell\n"
        f"print(stop(LocalShell(), {str(run.folder)!r}, who='first', grace_s=1000.0,"
        " say=lambda line: print(line, flush=True)))"
    )
    paths = os.pathsep.join(path for path in sys.path if path)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
    ) as first:
        assert "1000 s left" in first.stdout.readline()
        assert run.stop(0.0).outcome == "had to be killed"
        assert "had to be killed" in first.stdout.read()
