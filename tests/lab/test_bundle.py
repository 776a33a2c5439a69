"""The bundle on hosts behind SSH: sent whole or not at all, whatever the login shell, the disk and the link do."""

import sys
from contextlib import ExitStack

import pytest
import yaml

from dflashctl.config.hosts import HostsFile
from dflashctl.config.ssh import ssh_settings
from dflashctl.errors import HostUnreachable, JobFailed, LinkLost
from dflashctl.operations.bundle import Bundle, ensure_bundle
from dflashctl.transport.ssh_shell import open_shell
from dflashctl_remote.spec.bundle import bundle_sha


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
def workdir(tmp_path):
    return f'~/{tmp_path.name} it\'s "quoted"'


def names_in(host, folder):
    return host.exec(["ls", "-A", folder]).out.split()


def test_arrives_whole_behind_the_jump_and_is_there_afterwards(lab, kpro6, connect, workdir):
    shell = connect("kpro6")
    first, second = ensure_bundle(shell, workdir), ensure_bundle(shell, workdir)
    assert (first.was_there, second.was_there) == (False, True)
    assert first.root == f"{kpro6.home()}{workdir[1:]}/bundles/{bundle_sha()[:12]}"
    told = kpro6.exec(
        [
            "python3",
            "-c",
            "from dflashctl_remote.spec.bundle import *; import sys; print(sha_of_bundle(bundle_root()))",
        ],
        env={"PYTHONPATH": first.root, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert told.out.strip() == bundle_sha()


@pytest.mark.parametrize("program", ["/bin/tcsh", "/usr/bin/fish"])
def test_login_shell_and_what_it_prints_do_not_matter(ns_lab, ct129, connect, workdir, program):
    with ct129.login_shell(program):
        assert not ensure_bundle(connect("ct129"), workdir).was_there
    with ct129.bashrc("echo bundle=there; echo bundle_root=/nowhere; umask 077\n"):
        assert ensure_bundle(connect("ct129"), workdir).was_there


@pytest.mark.parametrize("program", ["/bin/dash", "/bin/bash", "/bin/busybox"])
def test_sh_may_be_any(ns_lab, ct129, connect, workdir, program):
    with ct129.sh_is(program):
        assert not ensure_bundle(connect("ct129"), workdir).was_there
        assert ensure_bundle(connect("ct129"), workdir).was_there


def test_a_full_disk_keeps_nothing_and_is_told_in_numbers(ns_lab, ct129, connect):
    with ct129.small_disk("/mnt/small disk", "200k"):
        with pytest.raises(JobFailed) as raised:
            ensure_bundle(connect("ct129"), "/mnt/small disk")
        assert "/mnt/small disk/bundles on ct129" in raised.value.message
        assert "No space left on device" in raised.value.message
        assert f"needs {Bundle.read().num_bytes / 1e6:.1f} MB, 0.2 MB free" in raised.value.message
        assert not names_in(ct129, "/mnt/small disk/bundles")


def test_two_operators_at_once_leave_one_whole_bundle(lab, ct129, operator, workdir):
    code = (
        "import os, sys, yaml\n"
        "from dflashctl.config.hosts import HostsFile\n"
        "from dflashctl.config.ssh import ssh_settings\n"
        "from dflashctl.operations.bundle import ensure_bundle\n"
        "from dflashctl.transport.ssh_shell import open_shell\n"
        "hosts = HostsFile.model_validate(yaml.safe_load(open(os.environ['DFLASHCTL_HOSTS'])))\n"
        "shell = open_shell('ct129', hosts, ssh_settings(os.environ))\n"
        "print(ensure_bundle(shell, sys.argv[1]).was_there)\n"
        "shell.close()\n"
    )
    senders = [operator.start([sys.executable, "-c", code, workdir]) for _ in range(3)]
    told = [sender.communicate(timeout=60) for sender in senders]
    assert sorted(out.decode().strip() for out, _ in told) == ["False", "True", "True"], told
    assert names_in(ct129, f"{ct129.home()}{workdir[1:]}/bundles") == [bundle_sha()[:12]]


def test_a_session_that_is_killed_on_the_way_is_made_up_for(lab, ct129, connect, workdir):
    """The connection dies after the question; what was sent is found out by asking."""
    shell = connect("ct129")

    class Cut:
        """The host, whose sessions are killed once, just before the bundle is sent."""

        name, was_cut = shell.name, False

        def run(self, script, *, timeout_s=30.0):
            if script.name == "send the bundle" and not self.was_cut:
                Cut.was_cut = True
                ct129.kill_sessions()
                raise LinkLost("cut", host="ct129")
            return shell.run(script, timeout_s=timeout_s)

    assert not ensure_bundle(Cut(), workdir).was_there
    assert Cut.was_cut


def test_a_host_that_is_off_the_net_is_unreachable_and_nothing_is_left_there(ns_lab, ct129, connect, workdir):
    shell = connect("ct129")
    with ct129.sshd_down(), pytest.raises(HostUnreachable):
        ensure_bundle(shell, workdir)
    assert not ct129.exists(f"{ct129.home()}{workdir[1:]}")
