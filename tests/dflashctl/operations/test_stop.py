import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dflashctl.errors import ConfigError, HostUnreachable, JobFailed, LinkLost
from dflashctl.operations.launch import launch
from dflashctl.operations.stop import LINK_S, stop
from dflashctl.transport import process
from dflashctl.transport.fake_shell import FakeShell
from dflashctl.transport.local_shell import LocalShell
from dflashctl.transport.shell import Answer
from dflashctl_remote.spec.process import MARKER, ExitRecord
from supervised_jobs import HAS_CHILDREN, IS_DEAF, SAVES, SLEEPS, carriers, is_alive, make_job, state_of, until

LEAVES_CHILDREN = """
import subprocess
quiet = {'stdout': subprocess.DEVNULL}
subprocess.Popen(['/bin/sleep', '1000'], **quiet)
subprocess.Popen(['/bin/sleep', '1000'], start_new_session=True, **quiet)
subprocess.Popen(['/bin/sleep', '1000'], env={}, start_new_session=True, **quiet)
"""
WAITS = "import sys; print('up', flush=True); sys.stdin.read()"


@pytest.fixture
def workdir(tmp_path):
    return tmp_path / 'it\'s a "work" folder'


@pytest.fixture
def nonce():
    return f"{random.getrandbits(128):032x}"


@pytest.fixture
def folder(workdir):
    return workdir / "runs/run-1"


@pytest.fixture
def start(workdir, folder, nonce):
    """Launches a supervised job, and waits until it says that it is up."""

    def run(code=SLEEPS, **changes):
        launched = launch(LocalShell(), make_job(workdir, code, **changes), nonce=nonce, settle_s=0.0)
        until(lambda: "up" in (folder / "log").read_text())
        return launched

    yield run
    for pid in carriers(nonce):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def end(folder):
    """Stops the run, and keeps what is said meanwhile."""

    def call(grace_s=5.0, *, shell=None, **changes):
        call.said = []
        return stop(
            shell or LocalShell(), str(folder), who='me "here"', grace_s=grace_s, say=call.said.append, **changes
        )

    return call


@pytest.fixture
def child():
    """Starts processes that say `up`, and ends them."""
    started = []

    def run(code=WAITS, **changes) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-S", "-c", code]
        started.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **changes))
        assert started[-1].stdout.readline() == b"up\n"
        return started[-1]

    yield run
    for one in started:
        one.kill()
        one.communicate()


@pytest.fixture
def attached(folder, child):
    """A run without a supervisor, as `train start` on this machine makes it: in the terminal's own session."""
    folder.mkdir(parents=True)

    def run(code=SAVES):
        one = child(code, env={**os.environ, MARKER: str(folder)}, process_group=0)
        token = process.token_of(one.pid, str(folder))
        (folder / "token.json").write_text(token.model_dump_json(indent=2) + "\n")
        return one

    return run


def job_pid(folder) -> int:
    """0 as long as it is not there."""
    path = folder / "attempts/0001/job"
    return int(path.read_text().partition(":")[0].strip() or 0) if path.exists() else 0


# ---- runs with a supervisor


def test_a_run_that_is_asked_ends_and_says_how(start, end, folder, nonce):
    start(SAVES)
    proof = end()
    assert (proof.outcome, proof.exit_code, proof.signal, proof.killed) == ("ended when asked", 130, 2, ())
    assert (proof.survivors, proof.ports_held, proof.gpus_held) == ((), (), ())
    assert carriers(nonce) == {}
    note = json.loads((folder / "attempts/0001/stop.requested").read_text())
    assert (note["who"], note["grace_s"]) == ('me "here"', 5)
    assert "5 s left" in end.said[0]


def test_a_run_that_does_not_listen_is_killed(start, end, folder, nonce):
    start(f"{HAS_CHILDREN}\n{IS_DEAF}")
    pid = job_pid(folder)
    proof = end(0.0)
    assert (proof.outcome, proof.signal, proof.survivors) == ("had to be killed", 9, ())
    assert pid in proof.killed
    assert carriers(nonce) == {}


def test_a_stop_of_what_has_ended_proves_it(start, end):
    start()
    first = end()
    second = end()
    assert (second.outcome, second.exit_code) == ("was gone already", first.exit_code)
    assert second.killed == ()


def test_two_stops_at_once_are_one(start, end, folder):
    start(SAVES)
    outcomes = []
    threads = [
        threading.Thread(target=lambda: outcomes.append(stop(LocalShell(), str(folder), who="a", grace_s=20.0).outcome))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(outcomes) <= {"ended when asked", "was gone already"}
    assert (folder / "log").read_text().count("saved") == 1


def test_a_supervisor_that_is_a_zombie_is_gone(start, end, folder):
    """Where nobody collects what has ended, as in many containers."""
    argv = ["/bin/sh", "-c", 'sh "$0" "$1" 0001 </dev/null >/dev/null 2>&1 & echo up; read -r line']
    job = make_job(folder.parent.parent, SLEEPS)
    start()
    end()
    # The same folder again, under a supervisor whose parent does not wait for it.
    shutil.rmtree(folder / "attempts/0001/supervisor")
    for name in ("exit.json", "token.json", "stop.requested", "attempts/0001/stop.requested"):
        (folder / name).unlink()
    (folder / "secrets.env").touch()
    with subprocess.Popen(
        [*argv, f"{job.supervisor}/supervise.sh", str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    ) as parent:  # fmt: skip
        until((folder / "token.json").exists)
        pid = json.loads((folder / "token.json").read_text())["pid"]
        until(lambda: is_alive(job_pid(folder)))
        assert end().outcome == "ended when asked"
        assert state_of(pid) == "Z"
        assert end().outcome == "was gone already"
        parent.communicate()


def test_a_supervisor_that_hangs_is_killed_after_its_job(start, end, folder, nonce):
    launched = start(SLEEPS)
    os.kill(launched.token.pid, signal.SIGSTOP)
    proof = end(0.0)
    assert proof.outcome == "had to be killed"
    assert launched.token.pid in proof.killed
    assert carriers(nonce) == {}
    assert not is_alive(launched.token.pid)
    assert ExitRecord.model_validate_json((folder / "exit.json").read_bytes()).stop


@pytest.mark.parametrize(("code", "outcome"), [(SAVES, "ended when asked"), (IS_DEAF, "had to be killed")])
def test_a_job_whose_supervisor_was_killed_is_stopped(start, end, folder, nonce, code, outcome):
    os.kill(start(code).token.pid, signal.SIGKILL)
    assert end(5.0 if code == SAVES else 0.0).outcome == outcome
    assert carriers(nonce) == {}
    record = ExitRecord.model_validate_json((folder / "exit.json").read_bytes())
    assert (record.stop, record.signal) == (True, 9 if code == IS_DEAF else None)


def test_one_that_looks_the_same_survives(start, end, child, nonce):
    """Equal in name, command line and all of its environment but the marker's value."""
    start(WAITS.replace("sys.stdin.read()", "__import__('time').sleep(1000)"))
    decoy = child(
        WAITS.replace("sys.stdin.read()", "__import__('time').sleep(1000)"),
        env={**os.environ, MARKER: nonce[:-1] + "x"},
    )
    end()
    assert decoy.poll() is None


# ---- runs without one


def test_a_run_without_supervisor_is_asked(attached, end, child):
    one, neighbour = attached(), child(process_group=0)
    proof = end()
    assert (proof.outcome, proof.survivors) == ("ended when asked", ())
    assert one.wait() == 130
    # In the same session of the same terminal.
    assert neighbour.poll() is None


def test_a_run_without_supervisor_that_does_not_listen_is_killed_with_its_children(attached, end, folder):
    one = attached(f"{LEAVES_CHILDREN}\n{IS_DEAF}")
    assert end(0.0).outcome == "had to be killed"
    assert one.wait() == -signal.SIGKILL
    assert carriers(str(folder)) == {}
    assert not (folder / "exit.json").exists()


# ---- tokens that are not the process's


def changed_token(folder, **changes):
    path = folder / "token.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_number_that_another_process_has_by_now_is_not_signalled(attached, end, folder):
    one = attached(SLEEPS)
    ticks = process.token_of(one.pid, "").start_ticks - 1
    changed_token(folder, start_ticks=ticks, marker="another")
    proof = end()
    assert proof.outcome == "was gone already"
    assert f"started at tick {ticks} " in end.said[0]
    assert one.poll() is None


def test_after_a_reboot_nothing_is_signalled(attached, end, folder):
    one = attached(SLEEPS)
    changed_token(folder, boot_id="another")
    assert end().outcome == "gone with the reboot"
    assert one.poll() is None
    assert not (folder / "stop.requested").exists()


def test_in_another_namespace_nothing_is_signalled(attached, end, folder):
    one = attached(SLEEPS)
    changed_token(folder, pid_namespace=1)
    with pytest.raises(JobFailed, match="PID namespace 1, which this shell of local is not in"):
        end()
    assert one.poll() is None


def test_a_token_that_cannot_be_read_signals_nobody(attached, end, folder):
    one = attached(SLEEPS)
    (folder / "token.json").write_text("{")
    with pytest.raises(JobFailed, match="cannot be read"):
        end()
    assert one.poll() is None


@pytest.mark.parametrize("exists", [False, True])
def test_what_is_no_run_is_told(end, folder, exists):
    if exists:
        folder.mkdir(parents=True)
    with pytest.raises(ConfigError, match="holds no token.json" if exists else "there is no run run-1"):
        end()


# ---- during the start


def make_attempt(folder, nonce, launcher):
    (folder / "attempts/0001").mkdir(parents=True)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (folder / "attempts/0001/launch").write_text(f"nonce={nonce}\nlauncher={launcher}\nboot={boot}\n")


def test_a_start_that_was_cut_off_is_nothing_to_stop(end, folder, nonce):
    make_attempt(folder, nonce, "4194304:1")
    passed = iter(range(0, 10_000, 3))
    proof = end(clock=lambda: float(next(passed)))
    assert (proof.outcome, proof.survivors) == ("never came up", ())


def test_a_stop_in_the_middle_of_a_start_ends_it(workdir, end, folder, nonce):
    """The supervisor begins while the stop waits for it."""
    mine = process.token_of(os.getpid(), "")
    make_attempt(folder, nonce, f"{mine.pid}:{mine.start_ticks}")
    job = make_job(workdir, SLEEPS)
    outcomes = []
    stopping = threading.Thread(target=lambda: outcomes.append(end().outcome))
    stopping.start()
    until((folder / "stop.requested").exists)
    (folder / "job.sh").write_text(f"touch {str(folder)!r}/started\n")
    (folder / "supervise.conf").write_text(
        f"marker={nonce}\nworkdir=/nowhere\nsh=/bin/sh\ngrace_s=1\nnum_restarts=0\nrestart_delay_s=0\nsettle_cs=0\n"
        "log_limit_bytes=1000000\nnum_logs=2\nport=\nleases=\n"
    )
    argv = ["setsid", "/bin/sh", f"{job.supervisor}/supervise.sh", str(folder), "0001"]
    subprocess.run(argv, stdin=subprocess.DEVNULL, check=True)
    stopping.join()
    assert outcomes == ["ended when asked"]
    assert not (folder / "started").exists()


# ---- ports and GPUs


def test_a_port_that_is_still_listened_on_is_told(start, end, workdir):
    port = start(needs_port=True).port
    with socket.create_server(("127.0.0.1", port)):
        assert end(pause=lambda seconds: None).ports_held == (port,)


@pytest.mark.parametrize(
    ("query", "held"),
    [
        ("--query-compute-apps*) echo 'GPU-a, 4242';;", ("GPU-a",)),
        ("--query-gpu*) echo 'GPU-a, 20000'; echo 'GPU-b, 3'; echo 'GPU-c, 70000';;", ("GPU-a",)),
        ("--query-gpu*) echo 'GPU-a, 12'; echo 'GPU-b, [N/A]';;", ()),
        ("*) exit 9;;", ()),
    ],
)
def test_leased_gpus_that_are_still_in_use_are_told(start, end, tmp_path, monkeypatch, query, held):
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/nvidia-smi"
    program.write_text(f'#!/bin/sh\ncase "$1" in {query} esac\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    start(gpus=("GPU-a", "GPU-b"))
    assert end(pause=lambda seconds: None).gpus_held == held


# ---- when the link is lost


class CutShell(LocalShell):
    """Loses the link before or after each script that is sent, once for each of them."""

    def __init__(self, fates):
        super().__init__("cut")
        self.fates = fates
        self.lost = set()

    def run(self, script, *, timeout_s=30.0):
        fate = self.fates.get(script.name)
        if fate is None or script.name in self.lost:
            return super().run(script, timeout_s=timeout_s)
        self.lost.add(script.name)
        if fate == "after":
            super().run(script, timeout_s=timeout_s)
        raise LinkLost("the link broke", host=self.name)


@pytest.mark.parametrize("fate", ["before", "after"])
def test_a_link_that_is_lost_at_each_step_only_delays_it(start, end, nonce, folder, fate):
    start(f"{HAS_CHILDREN}\n{SAVES}")
    shell = CutShell({f"stop: {step}": fate for step in ("look", "ask", "wait", "kill", "prove")})
    proof = end(shell=shell, pause=lambda seconds: None)
    assert (proof.outcome, proof.survivors) == ("ended when asked", ())
    assert carriers(nonce) == {}
    assert (folder / "log").read_text().count("saved") == 1


def told(**lines) -> Answer:
    fields = {"presence": "gone", "members": "", "job": "", "job_lives": "0", "exit": "", "folder": "there"}
    token = json.dumps({"boot_id": "b", "pid": 7, "start_ticks": 1, "pid_namespace": 2, "uid": 0, "marker": "m"})
    fields |= {"token": token, "attempt": "0001", "starting": "0", **lines}
    return Answer(0, "".join(f"{name}={value}\n" for name, value in fields.items()).encode(), "")


def test_a_link_that_stays_lost_leaves_the_outcome_unknown():
    shell = FakeShell(
        {
            "stop: look": [told(presence="alive", members="7:1")],
            "stop: ask": [told(presence="alive", members="7:1")],
            "stop: wait": [LinkLost("cut", host="fake"), HostUnreachable("no route", host="fake")],
        }
    )
    now = [0.0]

    def pause(seconds):
        now[0] += seconds

    with pytest.raises(LinkLost, match="whether run-1 on fake has ended is unknown") as caught:
        stop(shell, "/w/runs/run-1", who="me", grace_s=10.0, clock=lambda: now[0], pause=pause)
    assert now[0] > 10.0 + LINK_S
    assert "run the same command again" in caught.value.hint


def test_a_host_that_does_not_answer_at_all_has_not_been_changed():
    with pytest.raises(HostUnreachable) as caught:
        stop(FakeShell({"stop: look": [HostUnreachable("no route", host="fake")]}), "/w/runs/r", who="me")
    assert not isinstance(caught.value, LinkLost)


def test_what_outlives_sigkill_is_told():
    stuck = told(presence="gone", members="9:1", killed="9:1", due="9:1", leases="gpu-a", apps="a 9")
    shell = FakeShell({f"stop: {step}": [stuck] for step in ("look", "ask", "wait", "kill", "prove")})
    now = iter(range(10_000))
    with pytest.raises(
        JobFailed, match=r"process 9 of run-1 on fake outlives SIGKILL.*GPU a is still in use"
    ) as caught:
        stop(shell, "/w/runs/run-1", who="me", grace_s=5.0, clock=lambda: float(next(now)), pause=lambda seconds: None)
    assert caught.value.exit_code == 4


def test_time_is_not_taken_from_the_clock_of_the_day():
    assert stop.__kwdefaults__["clock"] is time.monotonic


# ---- what the kernel does not let go of, and what it kills by itself


@pytest.fixture
def control_group():
    """A control group of some kind (version 1) for this test, if one can be made."""
    made = []

    def make(kind: str) -> Path:
        made.append(Path("/sys/fs/cgroup") / kind / f"dflashctl-test-{os.getpid()}")
        try:
            made[-1].mkdir()
        except OSError as error:
            made.pop()
            pytest.skip(f"no control group can be made here: {error}")
        return made[-1]

    yield make
    for group in made:
        if (group / "freezer.state").exists():
            (group / "freezer.state").write_text("THAWED")
        for pid in (group / "tasks").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        until(lambda: (group / "tasks").read_text() == "")  # noqa: B023
        group.rmdir()


@pytest.mark.slow
def test_a_process_that_really_outlives_sigkill_is_told_and_settled_by_the_next_stop(start, end, folder, control_group):
    """A frozen one gets no signal, like one that hangs in a driver."""
    group = control_group("freezer")
    start(SLEEPS, gpus=("GPU-1",))
    pid = job_pid(folder)
    (group / "tasks").write_text(str(pid))
    (group / "freezer.state").write_text("FROZEN")
    with pytest.raises(JobFailed, match=f"process {pid} of run-1 on local outlives SIGKILL") as caught:
        end(0.0, pause=lambda seconds: None)
    assert caught.value.exit_code == 4
    assert is_alive(pid)
    # Its GPU is not given to another one.
    with pytest.raises(ConfigError, match="is leased by"):
        launch(LocalShell(), make_job(folder.parent.parent, SLEEPS, name="run-2", gpus=("GPU-1",)))
    (group / "freezer.state").write_text("THAWED")
    until(lambda: not is_alive(pid))
    assert end().outcome == "was gone already"
    launch(LocalShell(), make_job(folder.parent.parent, "pass", name="run-3", gpus=("GPU-1",)))


def test_what_the_kernel_kills_for_want_of_memory_is_told(workdir, folder, nonce, control_group):
    group = control_group("memory")
    (group / "memory.limit_in_bytes").write_text(str(64 * 2**20))
    shell = LocalShell(sh=("/bin/sh", "-c", f"echo $$ >{group}/tasks && exec /bin/sh -s"))
    code = "import time; time.sleep(0.3); kept = [bytearray(2**20) for _ in range(200)]; print('up')"
    launch(shell, make_job(workdir, code), nonce=nonce, settle_s=0.0)
    until((folder / "exit.json").exists)
    record = ExitRecord.model_validate_json((folder / "exit.json").read_bytes())
    assert (record.code, record.signal, record.stop) == (137, 9, False)
    assert record.oom_kills >= 1
