import os
import random
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dflashctl.errors import ConfigError, HostUnreachable, JobFailed, LinkLost
from dflashctl.operations.launch import DELAYS_S, launch, launch_script
from dflashctl.operations.stop import stop
from dflashctl.transport.fake_shell import FakeShell
from dflashctl.transport.local_shell import LocalShell
from dflashctl.transport.shell import Answer, Script
from dflashctl_remote.spec.process import ProcessToken
from supervised_jobs import SLEEPS, carriers, make_job, until

TOKEN = ProcessToken(boot_id="b", pid=7, start_ticks=1, pid_namespace=2, uid=0, marker="n")
STARTED = Answer(0, f"attempt=1\ntoken={TOKEN.model_dump_json()}\n\n".encode(), "")


class CutShell(LocalShell):
    """Loses some answers: of each script sent, the test says what becomes of it."""

    def __init__(self, *fates):
        super().__init__("cut")
        self.fates = list(fates)
        self.num_run = 0

    def run(self, script, *, timeout_s=30.0):
        fate = self.fates.pop(0) if self.fates else "answered"
        if fate == "not sent":
            raise LinkLost("the link broke before", host=self.name)
        if fate == "unreachable":
            raise HostUnreachable("nobody answers", host=self.name)
        self.num_run += 1
        if fate == "twice at once":
            other = threading.Thread(target=super().run, args=(script,))
            other.start()
            answer = super().run(script, timeout_s=timeout_s)
            other.join()
            return answer
        if isinstance(fate, tuple):
            # The host's own side of it is killed, when this file is there.
            (pattern,) = fate
            text = f"( while ! ls {pattern} >/dev/null 2>&1; do :; done; kill -s KILL 0 ) &\n{script.text}"
            cut = Script(script.name, text, script.values, script.secrets)
            super().run(cut, timeout_s=timeout_s)
            raise AssertionError("it was not cut")
        answer = super().run(script, timeout_s=timeout_s)
        if fate == "answer lost":
            raise LinkLost("the link broke after", host=self.name)
        return answer


@pytest.fixture
def workdir(tmp_path):
    return tmp_path / 'it\'s a "work" folder'


@pytest.fixture
def start(workdir):
    """Launches, and ends what is left."""
    folders = []

    def run(code=SLEEPS, *, shell=None, nonce=None, is_resume=False, **changes):
        job = make_job(workdir, code, **changes)
        folders.append(job.folder)
        return launch(
            shell or LocalShell(), job, nonce=nonce, is_resume=is_resume, settle_s=0.1, pause=lambda seconds: None
        )

    yield run
    for folder in set(folders):
        if Path(folder, "token.json").exists():
            stop(LocalShell(), folder, who="a test", grace_s=0.0)


@pytest.fixture
def nonce():
    return f"{random.getrandbits(128):032x}"


def test_a_launch_returns_when_the_token_is_there_and_the_job_lives(start, workdir, nonce):
    started = start(nonce=nonce, needs_port=True)
    assert started.token == ProcessToken.model_validate_json((workdir / "runs/run-1/token.json").read_bytes())
    assert started.attempt == 1
    assert len(carriers(nonce)) == 1
    assert (workdir / f"leases/port-{started.port}/owner").is_file()


def test_a_name_that_is_taken_starts_nothing(start, nonce):
    start()
    with pytest.raises(ConfigError, match=r"run run-1 exists already on local \(running\), nothing was started"):
        start(nonce=nonce)
    assert carriers(nonce) == {}


def test_of_many_that_start_the_same_run_at_once_one_does(start, workdir):
    outcomes = []

    def run():
        try:
            outcomes.append(start())
        except ConfigError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (started,) = [outcome for outcome in outcomes if not isinstance(outcome, ConfigError)]
    assert len(carriers(started.token.marker)) == 1
    assert [path.name for path in (workdir / "runs/run-1/attempts").iterdir()] == ["0001"]


def test_a_folder_that_is_no_run_is_left_as_it_is(start, workdir):
    (workdir / "runs/run-1").mkdir(parents=True)
    (workdir / "runs/run-1/mine").write_text("x")
    with pytest.raises(ConfigError, match="was never started"):
        start()
    assert [path.name for path in (workdir / "runs/run-1").iterdir()] == ["mine"]


def test_a_job_that_ends_at_once_is_told_with_the_end_of_its_log(start):
    code = "import sys\nfor n in range(40): print('line', n)\nsys.exit(3)"
    with pytest.raises(JobFailed, match="ended at once, with exit code 3") as caught:
        start(code)
    lines = caught.value.message.splitlines()
    assert lines[1:] == [f"line {n}" for n in range(10, 40)]
    assert caught.value.exit_code == 4


def test_a_program_that_is_missing_is_told_in_the_shell_s_words(start):
    with pytest.raises(JobFailed, match="exit code 127") as caught:
        start(argv=("/nowhere/python", "-m", "x"))
    assert "/nowhere/python" in caught.value.message


def test_a_secret_in_the_log_s_end_is_masked(start):
    with pytest.raises(JobFailed) as caught:
        start("import os, sys; print('it is', os.environ['KEY']); sys.exit(1)", secrets=(("KEY", "hunter2-hunter2"),))
    assert "it is ***" in caught.value.message
    assert "hunter2" not in str(caught.value)


def test_a_job_that_has_done_its_work_already_was_started(start, workdir):
    start("pass")
    assert (workdir / "runs/run-1/exit.json").exists()


def test_a_dry_run_shows_everything_but_secrets(workdir):
    job = make_job(workdir, SLEEPS, secrets=(("KEY", "hunter2"),), env=(("A", "b"),), gpus=("GPU-1",))
    shown = launch_script(job, "abc").shown()
    assert "hunter2" not in shown
    assert "CUDA_VISIBLE_DEVICES=GPU-1" in shown
    assert shlex.quote(job.folder) in shown


@pytest.mark.parametrize(
    "changes",
    [
        {"folder": "relative/run"},
        {"workdir": "/two\nlines"},
        {"env": (("A B", "c"),)},
        {"secrets": (("A", "\0"),)},
        {"gpus": ("GPU-1; rm",)},
        {"files": (("../x", ""),)},
        {"files": (("token.json", ""),)},
    ],
)
def test_what_cannot_be_written_down_is_refused(workdir, changes):
    with pytest.raises(ConfigError):
        launch_script(make_job(workdir, SLEEPS, **changes), "abc")


# ---- resume


def test_a_resume_goes_on_in_the_same_folder(start, workdir):
    folder = workdir / "runs/run-1"
    start("print('one')")
    first = ProcessToken.model_validate_json((folder / "token.json").read_bytes())
    second = start("print('two', flush=True); " + SLEEPS, is_resume=True)
    assert second.attempt == 2
    assert second.token != first
    assert not (folder / "exit.json").exists()
    assert ProcessToken.model_validate_json((folder / "attempts/0001/token.json").read_bytes()) == first
    assert (folder / "attempts/0001/exit.json").exists()
    until(lambda: (folder / "log").read_text() == "one\ntwo\nup\n")


def test_an_old_note_to_stop_does_not_stop_the_resumed_one(start, workdir):
    folder = workdir / "runs/run-1"
    start()
    stop(LocalShell(), str(folder), who="me", grace_s=5.0)
    assert (folder / "stop.requested").exists()
    assert start(is_resume=True).attempt == 2
    assert not (folder / "stop.requested").exists()


def test_what_runs_is_not_resumed(start, nonce):
    start()
    with pytest.raises(ConfigError, match=r"cannot be resumed \(running\), nothing was started"):
        start(is_resume=True, nonce=nonce)
    assert carriers(nonce) == {}


def test_what_lives_on_without_its_supervisor_is_not_resumed(start):
    os.kill(start().token.pid, signal.SIGKILL)
    with pytest.raises(ConfigError, match="without its supervisor, but process"):
        start(is_resume=True)


def test_of_two_resumes_at_once_one_starts(start, workdir):
    start("pass")
    outcomes = []

    def resume():
        try:
            outcomes.append(start(is_resume=True).attempt)
        except ConfigError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=resume) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, outcomes))[0] == "2"
    assert sum(isinstance(outcome, int) for outcome in outcomes) == 1


def test_a_run_that_is_not_there_is_not_resumed(start):
    with pytest.raises(ConfigError, match="there is no run run-1"):
        start(is_resume=True)


def test_a_run_that_was_not_supervised_can_be_resumed_as_one(start, workdir):
    folder = workdir / "runs/run-1"
    folder.mkdir(parents=True)
    gone = ProcessToken.model_validate_json(token_of_a_dead_process(folder))
    (folder / "token.json").write_text(gone.model_dump_json(indent=2))
    assert start(is_resume=True).attempt == 1
    assert (folder / "attempts/0000/token.json").exists()


def token_of_a_dead_process(folder) -> str:
    code = (
        "import os; from dflashctl.transport import process; print(process.token_of(os.getpid(), %r).model_dump_json())"
    )
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.run(
        [sys.executable, "-c", code % str(folder)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


# ---- leases


def test_a_gpu_that_a_living_run_has_is_not_given_twice(start, workdir, nonce):
    start(gpus=("GPU-2", "GPU-1"))
    with pytest.raises(ConfigError, match=r"GPU GPU-2 of local is leased by .*runs/run-1, nothing was started"):
        start(name="run-2", gpus=("GPU-3", "GPU-2"), nonce=nonce)
    assert carriers(nonce) == {}
    # What it had taken already is free again, and its name too.
    start(name="run-2", gpus=("GPU-3",))


def test_a_gpu_is_free_again_when_its_run_has_ended(start, workdir):
    start(gpus=("GPU-1",))
    stop(LocalShell(), f"{workdir}/runs/run-1", who="me", grace_s=5.0)
    start(name="run-2", gpus=("GPU-1",))


def test_the_lease_of_a_run_whose_supervisor_was_killed_holds_while_its_job_lives(start, workdir):
    os.kill(start(gpus=("GPU-1",)).token.pid, signal.SIGKILL)
    with pytest.raises(ConfigError, match="is leased by"):
        start(name="run-2", gpus=("GPU-1",))
    stop(LocalShell(), f"{workdir}/runs/run-1", who="me", grace_s=5.0)
    # Nobody gave it back, and nobody has it.
    assert (workdir / "leases/gpu-GPU-1").exists()
    start(name="run-2", gpus=("GPU-1",))


@pytest.mark.parametrize("left", ["owner of an earlier boot", "no owner"])
def test_a_lease_that_nobody_holds_is_taken_over(start, workdir, left):
    lease = workdir / "leases/gpu-GPU-1"
    lease.mkdir(parents=True)
    if left != "no owner":
        (lease / "owner").write_text(f"folder={workdir}/runs/old\nnonce=x\nlauncher={os.getpid()}:1\nboot=other\n")
    start(gpus=("GPU-1",))


def test_of_many_that_want_the_same_gpus_one_gets_them(start, workdir):
    outcomes = []

    def run(number):
        try:
            gpus = ("GPU-1", "GPU-2") if number % 2 else ("GPU-2", "GPU-1")
            outcomes.append(start(name=f"run-{number}", gpus=gpus))
        except ConfigError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(not isinstance(outcome, ConfigError) for outcome in outcomes) == 1


def test_runs_side_by_side_have_ports_of_their_own(start):
    ports = {start(name=f"run-{number}", needs_port=True).port for number in range(3)}
    assert len(ports) == 3


# ---- when the link is lost


@pytest.mark.parametrize(
    "fates",
    [
        ("not sent",),
        ("answer lost",),
        ("answer lost", "unreachable", "answered"),
        ("not sent", "answer lost"),
        ("twice at once",),
    ],
)
def test_a_lost_link_starts_it_once(start, nonce, workdir, fates):
    shell = CutShell(*fates)
    started = start(shell=shell, nonce=nonce)
    assert started.attempt == 1
    assert len(carriers(nonce)) == 1
    assert len(list((workdir / "runs/run-1/attempts").iterdir())) == 1


@pytest.mark.parametrize("fates", [("answer lost",), ("not sent",)])
def test_a_lost_link_resumes_it_once(start, nonce, fates):
    start("pass")
    assert start(shell=CutShell(*fates), nonce=nonce, is_resume=True).attempt == 2
    assert len(carriers(nonce)) == 1


@pytest.mark.parametrize(
    "file",
    ["attempts/0001/launch", "run.json", "secrets.env", "supervise.conf", "attempts/0001/supervisor", "token.json"],
)
def test_a_host_s_side_that_is_killed_half_way_starts_it_once(start, nonce, workdir, file):
    shell = CutShell((shlex.quote(f"{workdir}/runs/run-1/{file}"),))
    started = start(shell=shell, nonce=nonce, gpus=("GPU-1",), needs_port=True)
    assert started.attempt == 1
    assert len(carriers(nonce)) == 1
    assert started.port is not None
    assert len(list((workdir / "leases").iterdir())) == 2


def test_a_host_that_never_answered_has_not_been_changed():
    with pytest.raises(HostUnreachable) as caught:
        launch(FakeShell({"launch run-1": [HostUnreachable("no route", host="fake")]}), make_job("/w", SLEEPS))
    assert not isinstance(caught.value, LinkLost)


def test_a_host_that_stays_away_leaves_the_outcome_unknown():
    waited = []
    shell = FakeShell({"launch run-1": [LinkLost("cut", host="fake"), HostUnreachable("no route", host="fake")]})
    with pytest.raises(LinkLost, match="is unknown") as caught:
        launch(shell, make_job("/w", SLEEPS), pause=waited.append)
    assert tuple(waited) == DELAYS_S
    assert "train list" in caught.value.hint
    assert len({script.source() for script in shell.ran}) == 1


def test_a_start_that_is_still_at_work_is_waited_for():
    shell = FakeShell({"launch run-1": [LinkLost("cut", host="fake"), Answer(31, b"\n", ""), STARTED]})
    said = []
    launched = launch(shell, make_job("/w", SLEEPS), say=said.append, pause=lambda seconds: None)
    assert launched.token == TOKEN
    assert len(said) == 2


@pytest.mark.parametrize(
    ("code", "out", "kind", "words"),
    [
        (23, "", JobFailed, "lacks its supervisor"),
        (24, "path=/w/x\nwhy=No space left on device\n", JobFailed, r"/w/x could not be written on fake \(No space"),
        (24, "path=/w/x\n", JobFailed, "not known why"),
        (25, "", JobFailed, "neither setsid nor python3"),
        (27, "", JobFailed, "no free port"),
        (28, "", JobFailed, "did not come up"),
        (29, 'exit={"code":0,"signal":null,"at_s":1,"stop":true}\n', JobFailed, "was asked to stop"),
        (29, 'exit={"code":137,"signal":9,"at_s":1,"stop":false}\n', JobFailed, "with signal 9"),
        (32, "", JobFailed, "no /proc"),
        (1, "", JobFailed, "ended with code 1: what it said"),
    ],
)
def test_each_way_to_fail_is_one_sentence(code, out, kind, words):
    shell = FakeShell({"launch run-1": [Answer(code, f"{out}\n".encode(), "what it said\n")]})
    with pytest.raises(kind, match=words) as caught:
        launch(shell, make_job("/w", SLEEPS))
    assert caught.value.exit_code == 4


def test_a_bundle_without_its_supervisor_is_told(start, tmp_path, workdir):
    with pytest.raises(JobFailed, match="lacks its supervisor"):
        start(supervisor=str(tmp_path))
    assert not workdir.exists()


def test_a_folder_that_cannot_be_made_is_told(start, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(JobFailed, match=r"could not be written on local \(Not a directory\)"):
        start(folder=f"{tmp_path}/file/runs/run-1")


@pytest.mark.parametrize("number", [5, 9, 13])
def test_a_launcher_holds_nothing_of_the_run_open(start, number):
    """Else the connection would stay open while the job lives: the answer would never end."""
    reading, writing = os.pipe()

    class Leaky(LocalShell):
        def run(self, script, *, timeout_s=30.0):
            # bash: the only one that can give a descriptor of two digits away.
            argv = ["bash", "-c", f"exec {number}>&{writing} {writing}>&-; exec /bin/sh -s"]
            done = subprocess.run(
                argv, input=script.source().encode(), capture_output=True, pass_fds=[writing], check=False
            )
            return Answer(done.returncode, done.stdout, done.stderr.decode())

    try:
        start(shell=Leaky())
        os.close(writing)
        # At its end at once: this process held the last one.
        assert os.read(reading, 1) == b""
    finally:
        os.close(reading)
