"""Environments on hosts behind SSH: made once, whatever becomes of the link, of the operator and of the disk."""

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from dflashctl.config.hosts import HostsFile, HostSpec
from dflashctl.config.ssh import ssh_settings
from dflashctl.errors import ConfigError, JobFailed
from dflashctl.operations.bundle import ensure_bundle
from dflashctl.operations.environment import ensure_environment
from dflashctl.operations.environment_plan import plan_environment
from dflashctl.transport.ssh_shell import open_shell
from sshlab.host import wait_until
from tiny_wheel import write_wheel

UV = str(Path(sys.prefix) / "bin" / "uv")
PYTHON = str(Path(sys.base_prefix) / "bin" / "python3")
OPERATOR = """
import os, sys, yaml
from dflashctl.config.hosts import HostsFile, HostSpec
from dflashctl.config.ssh import ssh_settings
from dflashctl.operations.bundle import ensure_bundle
from dflashctl.operations.environment import ensure_environment
from dflashctl.operations.environment_plan import plan_environment
from dflashctl.transport.ssh_shell import open_shell

hosts = HostsFile.model_validate(yaml.safe_load(open(os.environ["DFLASHCTL_HOSTS"])))
workdir, spec = sys.argv[1], HostSpec.model_validate_json(sys.argv[2])
shell = open_shell("ct129", hosts, ssh_settings(os.environ))
supervisor = ensure_bundle(shell, workdir).supervisor
plan = plan_environment(spec, "ct129", modules=())
print(ensure_environment(shell, workdir, plan, supervisor, lambda line: None).python)
shell.close()
"""
LEAVE_100_KIB = """
free=$(df -Pk "$disk" | awk 'END { print $4 }')
head -c $(((free - 100) * 1024)) /dev/zero >"$disk/filler"
"""


@pytest.fixture
def connect(operator):
    hosts = HostsFile.model_validate(yaml.safe_load(operator.hosts_file.read_text()))
    with ExitStack() as stack:

        def open_one(name):
            shell = open_shell(name, hosts, ssh_settings(operator.env))
            stack.callback(shell.close)
            return shell

        yield open_one


@pytest.fixture
def place(tmp_path):
    """Below the home folder of a host."""
    return f'{tmp_path.name} it\'s "quoted"'


@pytest.fixture
def spec(tmp_path, place):
    """What hosts.yaml says of a host that has a wheel to install."""

    def make(host, **changes):
        wheels = f"{host.home()}/{place} wheels"
        wheel = write_wheel(tmp_path / "wheels")
        host.write(f"{wheels}/{wheel.name}", wheel.read_bytes())
        fields = {
            "workdir": f"~/{place}",
            "env": "uv",
            "uv": UV,
            "python": PYTHON,
            "requirements": ("tiny==1.0",),
            "install_args": ("--no-index", "--find-links", wheels),
        }
        return HostSpec(**{**fields, **changes})

    return make


@pytest.fixture
def slow_uv(tmp_path):
    """A uv that waits for a file before it installs: the program, and the file, on a host."""

    def make(host):
        program, word = f"{host.home()}/{tmp_path.name} slow uv", f"{host.home()}/{tmp_path.name} word"
        text = f'#!/bin/sh\n[ "$1" = venv ] || until [ -e "{word}" ]; do sleep 0.05; done\nexec "{UV}" "$@"\n'
        host.write(program, text, mode=0o755)
        return program, word

    return make


def ensure(shell, spec, *, say=lambda line: None, **changes):
    supervisor = ensure_bundle(shell, spec.workdir).supervisor
    plan = plan_environment(spec, shell.name, modules=())
    return ensure_environment(shell, spec.workdir, plan, supervisor, say, pause=lambda delay_s: None, **changes)


def value_in(host, environment):
    return host.exec([environment.python, "-c", "import tiny; print(tiny.VALUE)"]).out.strip()


def attempts_on(host, place):
    return host.exec('ls "$HOME/$1"/envs/.making-*/attempts'.replace("$1", place.replace('"', '\\"'))).out.split()


@pytest.mark.parametrize("kind", ["uv", "pip"])
def test_made_on_a_host_behind_the_jump_and_used_again(lab, kpro6, connect, spec, place, kind):
    shell, wanted = connect("kpro6"), spec(kpro6, env=kind)
    first, second = ensure(shell, wanted), ensure(shell, wanted)
    assert (first.was_there, second.was_there) == (False, True)
    assert first.python.startswith(f"{kpro6.home()}/{place}/envs/")
    assert value_in(kpro6, second) == "1.0"


def test_a_noisy_login_shell_that_keeps_files_to_itself_does_not_matter(ns_lab, ct129, connect, spec):
    with ct129.bashrc("echo env_complete=000000000000; umask 077\n"):
        assert value_in(ct129, ensure(connect("ct129"), spec(ct129))) == "1.0"


@pytest.mark.parametrize("program", ["/bin/bash", "/bin/busybox"])
def test_sh_may_be_any(ns_lab, ct129, connect, spec, program):
    with ct129.sh_is(program):
        assert value_in(ct129, ensure(connect("ct129"), spec(ct129))) == "1.0"


def test_sessions_that_are_killed_while_it_is_made_do_not_matter(lab, ct129, connect, spec, place, slow_uv):
    program, word = slow_uv(ct129)
    killed = []

    def say(line):
        # Every line but the first comes while it is being made.
        if "making" not in line and not killed:
            killed.append(ct129.kill_sessions())
            ct129.write(word, "")

    assert value_in(ct129, ensure(connect("ct129"), spec(ct129, uv=program), say=say)) == "1.0"
    assert killed and killed[0] > 0
    assert attempts_on(ct129, place) == ["0001"]


def test_an_operator_that_is_killed_leaves_a_making_that_the_next_one_waits_for(
    lab, ct129, operator, connect, spec, place, slow_uv
):
    program, word = slow_uv(ct129)
    wanted = spec(ct129, uv=program)
    argv = [sys.executable, "-c", OPERATOR, wanted.workdir, wanted.model_dump_json()]
    first = operator.start(argv)
    wait_until(lambda: makings_on(ct129, program), "the first operator's making", 30.0)
    (before,) = makings_on(ct129, program)
    first.kill()
    first.wait()
    second, third = operator.start(argv), operator.start(argv)
    wait_until(lambda: len(ct129.below_sshd()) > 0, "the others", 30.0)
    assert [process.pid for process in makings_on(ct129, program)] == [before.pid]
    ct129.write(word, "")
    told = [other.communicate(timeout=60) for other in (second, third)]
    assert len({out for out, _ in told}) == 1 and told[0][0], told
    assert ct129.exec([told[0][0].decode().strip(), "-c", "import tiny; print(tiny.VALUE)"]).out == "1.0\n"
    assert attempts_on(ct129, place) == ["0001"]


def makings_on(host, program):
    return [process for process in host.processes() if program in process.argv and "install" in process.argv]


def test_a_full_disk_is_told_and_leaves_nothing_that_counts(ns_lab, ct129, connect, spec):
    with ct129.small_disk("/mnt/small disk", "3m"):
        shell, wanted = connect("ct129"), spec(ct129, workdir="/mnt/small disk")
        supervisor = ensure_bundle(shell, wanted.workdir).supervisor
        ct129.exec(LEAVE_100_KIB, env={"disk": "/mnt/small disk"})
        plan = plan_environment(wanted, "ct129")
        with pytest.raises(JobFailed) as raised:
            ensure_environment(shell, wanted.workdir, plan, supervisor, lambda line: None, pause=lambda delay_s: None)
        assert raised.value.exit_code == 4
        assert "no space left on device" in raised.value.message.lower()
        assert not ct129.exec("ls '/mnt/small disk/envs' 2>/dev/null", check=False).out.split()


def test_uv_that_is_not_there_is_told_with_its_cure(ns_lab, ct129, connect, spec):
    with ct129.without("uv"), pytest.raises(ConfigError, match="ct129 says env: uv, and uv is not there") as raised:
        ensure(connect("ct129"), spec(ct129, uv="uv"))
    assert raised.value.exit_code == 2


def test_an_interpreter_that_is_not_there_is_told(ns_lab, ct129, connect, spec):
    with ct129.without("python3"), pytest.raises(ConfigError, match="ct129 has no interpreter python3"):
        ensure(connect("ct129"), spec(ct129, env="pip", python="python3"))
