import base64
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dflashctl.config.hosts import HostSpec
from dflashctl.errors import ArtifactError, ConfigError, JobFailed, LinkLost
from dflashctl.operations.bundle import SUPERVISOR
from dflashctl.operations.environment import (
    QUESTION,
    ask_environments,
    ensure_environment,
    find_environment,
    question_values,
    read_environments,
)
from dflashctl.operations.environment_plan import plan_environment
from dflashctl.transport.local_shell import LocalShell
from dflashctl.transport.process import family, send
from dflashctl.transport.shell import Script
from dflashctl_remote.spec.process import ProcessToken
from tiny_wheel import write_wheel

PYTHON = str(Path(sys.base_prefix) / "bin" / "python3")
UV = str(Path(sys.prefix) / "bin" / "uv")


@pytest.fixture
def workdir(tmp_path):
    """A name that only quoting survives."""
    return str(tmp_path / 'it\'s a "work" $(folder)')


@pytest.fixture
def shell(monkeypatch):
    # What this machine's installers are told otherwise is not to count.
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    return LocalShell("kpro6")


@pytest.fixture
def wheels(tmp_path):
    folder = tmp_path / "wheels of 'mine'"
    write_wheel(folder, "1.0")
    write_wheel(folder, "2.0")
    return folder


@pytest.fixture
def plan(wheels):
    def make(*, secrets=(), modules=(), **changes):
        fields = {
            "env": "uv",
            "uv": UV,
            "python": PYTHON,
            "requirements": ("tiny==1.0",),
            "install_args": ("--no-index", "--find-links", str(wheels)),
        }
        return plan_environment(HostSpec(**{**fields, **changes}), "kpro6", secrets=secrets, modules=modules)

    return make


@pytest.fixture
def ensure(shell, workdir):
    said = []

    def call(plan, *, shell=shell, **changes):
        return ensure_environment(
            shell, workdir, plan, str(SUPERVISOR), said.append, pause=lambda delay_s: None, **changes
        )

    call.said = said
    return call


@pytest.fixture
def slow_uv(tmp_path):
    """A uv that waits for a word before it installs: the pipe to write it into, and the program."""
    pipe, program = tmp_path / "word", tmp_path / "slow uv"
    os.mkfifo(pipe)
    program.write_text(f'#!/bin/sh\n[ "$1" = venv ] || read -r word <"{pipe}"\nexec "{UV}" "$@"\n')
    program.chmod(0o755)
    return pipe, str(program)


@pytest.fixture
def cut_after_launch(shell):
    """The host, which does not answer any more once the making was started."""

    class Cut:
        name, is_cut = shell.name, False

        def run(self, script, *, timeout_s=30.0):
            if self.is_cut:
                raise LinkLost("cut", host=self.name)
            answer = shell.run(script, timeout_s=timeout_s)
            self.is_cut = script.name.startswith("launch")
            return answer

    return Cut()


def end_making(token_path):
    token = ProcessToken.model_validate_json(token_path.read_text())
    # The supervisor first: it would write down the end.
    for member in (token, *family(token)):
        send(member, signal.SIGKILL)
    return token


def wait_for(claim, limit_s=20.0):
    end_s = time.monotonic() + limit_s
    while not claim():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def value_in(environment):
    done = subprocess.run(
        [environment.python, "-c", "import tiny; print(tiny.VALUE)"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def digest_of(folder):
    lines = [
        f"{path} {path.stat().st_mtime_ns} {hashlib.sha256(path.read_bytes()).hexdigest()}"
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    ]
    return lines


def holders_of(folder, secret):
    files = [path for path in Path(folder).rglob("*") if path.is_file() and not path.is_symlink()]
    assert any(path.name == "log" for path in files)
    return [path for path in files if secret in read_quietly(path)]


def read_quietly(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


def attempts_at(workdir):
    return sorted(path.name for path in Path(workdir).glob("envs/.making-*/attempts/*"))


def test_made_once_and_used_the_second_time(ensure, plan, workdir):
    first, second = ensure(plan()), ensure(plan())
    assert (first.was_there, second.was_there) == (False, True)
    assert first.python == second.python == f"{workdir}/envs/{first.name}/bin/python"
    assert value_in(first) == "1.0"
    record = json.loads(Path(workdir, "envs", first.name, "env.json").read_text())
    assert (record["kind"], record["requirements"]) == ("uv", ["tiny==1.0"])
    assert record["installed"] == ["tiny==1.0"]
    assert record["python_version"] == ".".join(map(str, sys.version_info[:3]))
    assert [path.name for path in Path(workdir, "cache").iterdir()] == ["uv"]
    assert ensure.said[0] == f"kpro6: making environment {first.name} (uv, 1 requirement)"


def test_another_requirement_makes_another_one_and_leaves_the_first_as_it_is(ensure, plan, workdir):
    first = ensure(plan())
    job = subprocess.Popen(
        [first.python, "-c", "import sys, tiny; print(tiny.VALUE, flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with job:
        assert job.stdout.readline() == b"1.0\n"
        before = digest_of(Path(workdir, "envs", first.name))
        second = ensure(plan(requirements=("tiny==2.0",)))
        assert ensure(plan()).was_there
        assert job.poll() is None
        assert digest_of(Path(workdir, "envs", first.name)) == before
        job.stdin.close()
    assert first.name != second.name
    assert (value_in(first), value_in(second)) == ("1.0", "2.0")


def test_two_operators_at_once_make_it_once_and_both_wait(ensure, plan, workdir, slow_uv):
    pipe, program = slow_uv
    came, failed = [], []

    def want():
        try:
            came.append(ensure(plan(uv=program), shell=LocalShell("kpro6")))
        except Exception as error:  # noqa: BLE001 - shown by the test
            failed.append(error)

    threads = [threading.Thread(target=want) for _ in range(3)]
    for thread in threads:
        thread.start()
    pipe.write_text("go\n")
    for thread in threads:
        thread.join()
    assert not failed
    assert len({environment.python for environment in came}) == 1 and len(came) == 3
    assert attempts_at(workdir) == ["0001"]


def test_an_operator_that_is_killed_neither_stops_nor_doubles_it(ensure, plan, workdir, slow_uv, wheels):
    pipe, program = slow_uv
    code = (
        "import sys\n"
        "from dflashctl.config.hosts import HostSpec\n"
        "from dflashctl.operations.bundle import SUPERVISOR\n"
        "from dflashctl.operations.environment import ensure_environment\n"
        "from dflashctl.operations.environment_plan import plan_environment\n"
        "from dflashctl.transport.local_shell import LocalShell\n"
        "spec = HostSpec.model_validate_json(sys.argv[1])\n"
        "say = lambda line: print(line, flush=True)\n"
        "ensure_environment(LocalShell('kpro6'), sys.argv[2], plan_environment(spec, 'kpro6', modules=()),"
        " str(SUPERVISOR), say)\n"
    )
    spec = HostSpec(
        env="uv",
        uv=program,
        python=PYTHON,
        requirements=("tiny==1.0",),
        install_args=("--no-index", "--find-links", str(wheels)),
    )
    first = subprocess.Popen(
        [sys.executable, "-c", code, spec.model_dump_json(), workdir],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    with first:
        wait_for(lambda: list(Path(workdir, "envs").glob("[0-9a-f]*/pyvenv.cfg")))
        first.kill()
    writer = threading.Thread(target=lambda: pipe.write_text("go\n"))
    writer.start()
    environment = ensure(plan(uv=program))
    writer.join()
    assert value_in(environment) == "1.0"
    assert attempts_at(workdir) == ["0001"]


def test_a_making_that_died_is_cleaned_up_and_done_anew(ensure, plan, workdir, slow_uv, cut_after_launch):
    pipe, program = slow_uv
    with pytest.raises(LinkLost):
        ensure(plan(uv=program), shell=cut_after_launch)
    (making,) = Path(workdir, "envs").glob(".making-*")
    wait_for(lambda: list(Path(workdir, "envs").glob("[0-9a-f]*/pyvenv.cfg")))
    token = end_making(making / "token.json")
    (half,) = Path(workdir, "envs").glob("[0-9a-f]*")
    (half / "of the half").write_text("")
    wait_for(lambda: not family(token))
    again = threading.Thread(target=lambda: pipe.write_text("go\n"))
    again.start()
    assert value_in(ensure(plan(uv=program))) == "1.0"
    again.join()
    assert not (half / "of the half").exists()
    assert attempts_at(workdir) == ["0001", "0002"]


def test_a_failed_install_is_told_with_its_log_and_leaves_nothing_that_counts(ensure, plan, workdir, wheels):
    with pytest.raises(JobFailed) as raised:
        ensure(plan(requirements=("tiny==3.0",)))
    assert raised.value.exit_code == 4
    head, *log = raised.value.message.splitlines()
    assert re.fullmatch(r"environment [0-9a-f]{12} could not be made on kpro6; the end of its log:", head)
    assert any("tiny==3.0" in line for line in log) and len(log) <= 30
    assert not list(Path(workdir, "envs").glob("[0-9a-f]*"))
    write_wheel(wheels, "3.0")
    assert value_in(ensure(plan(requirements=("tiny==3.0",)))) == "3.0"


def test_a_link_that_breaks_while_it_is_made_does_not_matter(ensure, plan, workdir, shell):
    class Shaky:
        """The host, whose every other answer is lost on the way back."""

        name, num_asked = shell.name, 0

        def run(self, script, *, timeout_s=30.0):
            answer = shell.run(script, timeout_s=timeout_s)
            Shaky.num_asked += 1
            if Shaky.num_asked % 2:
                return answer
            raise LinkLost("cut", host="kpro6")

    assert value_in(ensure(plan(), shell=Shaky())) == "1.0"
    assert attempts_at(workdir) == ["0001"]


def test_a_link_that_stays_broken_is_told_and_the_making_goes_on(ensure, plan, workdir, slow_uv, cut_after_launch):
    pipe, program = slow_uv
    with pytest.raises(LinkLost) as raised:
        ensure(plan(uv=program), shell=cut_after_launch)
    assert raised.value.hint == "it goes on there; the same command waits for it"
    pipe.write_text("go\n")
    assert value_in(ensure(plan(uv=program))) == "1.0"
    assert attempts_at(workdir) == ["0001"]


@pytest.fixture
def index(wheels):
    """An index of packages that asks for a name and a password: its address with them."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            is_known = self.headers["Authorization"] == "Basic " + base64.b64encode(b"ann:pa55word").decode()
            self.is_wheel = self.path.endswith(".whl")
            wheel = wheels / "tiny-1.0-py3-none-any.whl"
            self.body = wheel.read_bytes() if self.is_wheel else f'<a href="/{wheel.name}">{wheel.name}</a>'.encode()
            self.send_response(200 if is_known else 401)
            self.send_header("Content-Type", "application/zip" if self.is_wheel else "text/html")
            self.send_header("Content-Length", str(len(self.body)))
            self.end_headers()

        def do_GET(self):
            self.do_HEAD()
            self.wfile.write(self.body)

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://ann:pa55word@127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("kind", ["uv", "pip"])
def test_an_index_with_a_password_is_used_and_the_password_is_nowhere_to_be_read(
    ensure, plan, workdir, kind, index, slow_uv
):
    pipe, program = slow_uv
    made = []
    wanted = plan(env=kind, uv=program, install_args=("--index-url", f"{index}/simple"))
    maker = threading.Thread(target=lambda: made.append(ensure(wanted)))
    maker.start()
    if kind == "uv":
        wait_for(lambda: list(Path(workdir).glob("envs/.making-*/log")))
        assert not [argv for argv in map(read_quietly, Path("/proc").glob("[0-9]*/cmdline")) if b"pa55word" in argv]
        pipe.write_text("go\n")
    maker.join()
    assert value_in(made[0]) == "1.0"
    assert not holders_of(workdir, b"pa55word")
    assert ensure(wanted).was_there


@pytest.mark.parametrize("kind", ["uv", "pip"])
def test_a_failure_shows_no_password(ensure, plan, workdir, kind):
    wanted = plan(
        env=kind,
        requirements=("tiny @ http://bob:s3cret@127.0.0.1:9/tiny-1.0-py3-none-any.whl",),
        install_args=("--index-url", "http://ann:pa55word@127.0.0.1:9/simple"),
        variables={"PIP_RETRIES": "0", "UV_HTTP_RETRIES": "0"},
    )
    with pytest.raises(JobFailed) as raised:
        ensure(wanted)
    assert "127.0.0.1:9/tiny-1.0" in raised.value.message
    assert not re.search("pa55word|s3cret", raised.value.message + "".join(ensure.said))
    assert not holders_of(workdir, b"pa55word") and not holders_of(workdir, b"s3cret")


def test_a_host_that_may_not_be_changed_is_not(ensure, plan, workdir):
    with pytest.raises(ConfigError) as raised:
        ensure(plan(), allow_create=False)
    assert "is protected" in raised.value.message
    assert raised.value.hint == "add --touch kpro6"
    assert not Path(workdir).exists()
    ensure(plan())
    assert ensure(plan(), allow_create=False).was_there


def test_question_is_a_part_of_anyones_script(shell, ensure, plan, workdir):
    def ask():
        text = QUESTION + "\necho other=fact\nenvironment_question\n"
        return read_environments(shell.run(Script("survey", text, question_values(plan(), workdir))))

    assert find_environment(plan(), ask()) is None
    made = ensure(plan(), known=ask())
    assert find_environment(plan(), ask()).python == made.python


def test_one_whose_interpreter_is_gone_is_not_used(ensure, plan, workdir):
    made = ensure(plan())
    Path(made.python).unlink()
    with pytest.raises(ArtifactError, match="the interpreter that it was made with is gone") as raised:
        ensure(plan())
    assert f"envs/{made.name}" in raised.value.hint


def test_without_env_the_interpreter_is_used_as_it_is(ensure, plan, workdir):
    found = ensure(plan(env=None, modules=("json",)))
    assert (found.name, found.was_there) == ("", True)
    assert os.path.samefile(found.python, PYTHON)
    assert not Path(workdir).exists()


def test_an_interpreter_without_what_jobs_need_is_told(ensure, plan):
    with pytest.raises(ConfigError, match=r"jobs on kpro6 need no_such_module, not found for /.*python") as raised:
        ensure(plan(env=None, modules=("json", "no_such_module")))
    assert raised.value.exit_code == 2


def test_a_missing_uv_is_told_with_where_it_was_looked_for(ensure, plan, tmp_path):
    shell = LocalShell("kpro6", sh=("/usr/bin/env", f"HOME={tmp_path}", "/bin/sh", "-s"))
    with pytest.raises(ConfigError) as raised:
        ensure(plan(uv="uvx9"), shell=shell)
    assert raised.value.message == (
        "kpro6 says env: uv, and uv is not there (looked in PATH, ~/.local/bin/uvx9 and ~/.cargo/bin/uvx9)"
    )
    assert raised.value.hint.startswith("on kpro6: curl ")


def test_uv_is_found_in_the_home_folder(plan, workdir, tmp_path):
    (tmp_path / ".cargo" / "bin").mkdir(parents=True)
    (tmp_path / ".cargo" / "bin" / "uvx9").symlink_to(UV)
    shell = LocalShell("kpro6", sh=("/usr/bin/env", f"HOME={tmp_path}", "/bin/sh", "-s"))
    assert ask_environments(shell, workdir, plan(uv="uvx9")).uv == f"{tmp_path}/.cargo/bin/uvx9"


def test_uv_finds_an_interpreter_by_its_version(shell, workdir, plan):
    version = ".".join(map(str, sys.version_info[:2]))
    found = ask_environments(shell, workdir, plan(python=version))
    assert found.python_version.startswith(f"{version}.")
    assert find_environment(plan(python=version), found) is None


def test_a_missing_interpreter_is_told(ensure, plan):
    with pytest.raises(ConfigError, match="kpro6 has no interpreter /no/such/python"):
        ensure(plan(python="/no/such/python"))


@pytest.fixture
def pretended(tmp_path):
    """An interpreter that says of itself what it is told to."""

    def make(*lines):
        program = tmp_path / "python9"
        program.write_text("#!/bin/sh\n" + "".join(f"echo {line}\n" for line in lines))
        program.chmod(0o755)
        return str(program)

    return make


def test_an_interpreter_that_is_too_old_is_told(ensure, plan, pretended):
    with pytest.raises(ConfigError, match=r"jobs need Python 3\.11 or newer, and /.*/python9 on kpro6 is 3\.9\.2"):
        ensure(plan(python=pretended("env_python_version=3.9.2", "env_has_venv=1")))


def test_an_interpreter_without_venv_is_told_with_its_cure(ensure, plan, pretended):
    python = pretended("env_python_version=3.11.2", "env_has_venv=0")
    with pytest.raises(ConfigError, match=r"has no venv with pip in it") as raised:
        ensure(plan(env="pip", python=python))
    assert "apt-get install python3-venv" in raised.value.hint


def test_an_interpreter_that_does_not_run_is_told(ensure, plan, pretended):
    with pytest.raises(ConfigError, match=r"/.*/python9 on kpro6 does not run"):
        ensure(plan(python=pretended()))
