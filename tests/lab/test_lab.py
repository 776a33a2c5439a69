"""The lab itself: that it is what the tests beside this file take it for."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml

from dflashctl.config.hosts import HostsFile
from sshlab import Lab, LabError, means
from sshlab.host import wait_until
from sshlab.isolated import LARGEST_PACKET_BYTES
from sshlab.lab import remove_abandoned
from sshlab.processes import descendants
from sshlab.raw_stream import has_iperf3, iperf3_seconds, python_seconds

UP_AND_WAIT = """
import sys
from sshlab import Lab
lab = Lab(sys.argv[1]).up()
job = lab.hosts["ct129"].start(["sleep", "1000"])
print(lab.folder, job.outer_pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["namespaces", "loopback"])
def mode(request, lab):
    if lab.mode == "loopback" and request.param == "namespaces":
        pytest.skip("no right to make namespaces")
    return request.param


@pytest.fixture(scope="module")
def loopback_lab(lab):
    if lab.mode == "loopback":
        yield lab
        return
    # Its loopback is the one that the tests have.
    with lab.in_operator():
        other = Lab("loopback").up()
    yield other
    other.down()


@pytest.fixture
def any_lab(lab, loopback_lab, mode):
    """The lab, and where its hosts are isolated also one whose hosts are not."""
    yield lab if mode == lab.mode else loopback_lab
    loopback_lab.settle()


@pytest.fixture
def any_operator(any_lab, tmp_path):
    made = any_lab.operator(tmp_path)
    yield made
    made.end_started()


def connect(address, port):
    with socket.create_connection((address, port), timeout=5):
        pass


def connects(host, other):
    """Whether a host reaches another one's sshd."""
    return host.exec(["bash", "-c", f"exec 3<>/dev/tcp/{other.address}/{other.port}"], check=False).code == 0


# ---- who reaches whom


def test_the_operator_reaches_every_host_by_ssh(any_lab, any_operator):
    for host in any_lab.hosts.values():
        assert any_operator.ssh(host.name, "echo $HOME").out == f"{host.home()}\n"


def test_the_operator_reaches_kpro6_only_through_jump(ns_lab, operator, kpro6):
    with pytest.raises(OSError, match="unreachable"):
        connect(kpro6.address, kpro6.port)
    assert "198.18.3.1" in operator.ssh("kpro6", "echo $SSH_CONNECTION").out


def test_ct129_and_kpro6_do_not_reach_each_other(ns_lab, jump, ct129, kpro6):
    assert not connects(ct129, kpro6)
    assert not connects(kpro6, ct129)
    assert not connects(ct129, jump)
    assert connects(jump, kpro6)


def test_nothing_else_is_reached_from_inside(ns_lab):
    with pytest.raises(OSError, match="unreachable"):
        connect("192.0.2.1", 80)


def test_threads_of_a_test_are_where_the_operator_is(ns_lab, ct129):
    outcome = []
    thread = threading.Thread(target=lambda: outcome.append(connect(ct129.address, ct129.port)))
    thread.start()
    thread.join()
    assert outcome == [None]


def test_a_thread_comes_back_from_where_the_operator_is(ns_lab):
    before = os.readlink("/proc/thread-self/ns/net")
    with Lab("namespaces") as other:
        with other.in_operator():
            assert os.readlink("/proc/thread-self/ns/net") != before
        assert os.readlink("/proc/thread-self/ns/net") == before


# ---- isolation


def test_a_host_has_its_own_processes(ns_lab, ct129, kpro6):
    job = ct129.start(["sleep", "1234.5"])
    assert ct129.is_alive(job)
    assert "1234.5" in ct129.exec("cat /proc/[0-9]*/cmdline").out
    assert "1234.5" not in kpro6.exec("cat /proc/[0-9]*/cmdline").out
    assert kpro6.processes()[0].pid == 1


def test_a_host_has_its_own_files(ns_lab, ct129, kpro6):
    for path in ("/tmp/mine", "/root/mine", "/usr/local/bin/mine", "/run/mine"):
        ct129.write(path, "mine")
        assert ct129.read(path) == b"mine"
        assert not kpro6.exists(path)
        assert not Path(path).exists()


def test_a_second_user_logs_in_without_rights(ns_lab, operator, ct129):
    assert operator.ssh("ct129", "id -u; echo $HOME", options=["-l", "train"]).out == "1500\n/home/train\n"
    assert ct129.exec("id -u", user="train").out == "1500\n"
    with pytest.raises(LabError, match="Permission denied"):
        ct129.exec("touch /root/mine", user="train")


def test_the_tests_own_python_runs_on_a_host(any_lab):
    host = any_lab.hosts["ct129"]
    assert host.exec([sys.executable, "-c", "import pydantic; print(6 * 7)"]).out == "42\n"


def test_a_host_tells_of_its_processes_by_the_hosts_own_numbers(any_lab):
    host = any_lab.hosts["ct129"]
    job = host.start(["sleep", "1000"], env={"MARK": "a b"})
    found = host.process(int(host.exec(["cat", f"/proc/{job.pid}/stat"]).out.split()[0]))
    assert found == job
    assert (found.argv, found.environ["MARK"], found.session) == (("sleep", "1000"), "a b", found.pid)
    assert job in host.jobs()
    assert host.end_jobs() == (job,)
    assert not host.is_alive(job)


def test_a_signal_meant_for_an_ended_process_is_an_error(any_lab):
    host = any_lab.hosts["ct129"]
    job = host.start(["sleep", "1000"])
    host.signal(job, signal.SIGKILL)
    host.end_jobs()
    with pytest.raises(LabError, match="no such process"):
        host.signal(job, signal.SIGTERM)


def test_whoever_is_logged_in_is_no_job(any_lab, any_operator):
    host = any_lab.hosts["ct129"]
    session = any_operator.start([*any_operator.ssh_argv("ct129"), "echo here; sleep 1000"])
    assert session.stdout.readline() == b"here\n"
    # Between fork and exec a process has the words of the one before, or none.
    wait_until(lambda: "1000" in [process.argv[-1] for process in host.below_sshd()], "it sleeps")
    assert not host.jobs()


# ---- faults


def test_pid_1_waits_for_orphans_unless_it_is_told_not_to(ns_lab, ct129):
    job = ct129.start(["sleep", "1000"])
    with ct129.not_reaping():
        ct129.signal(job, signal.SIGKILL)
        wait_until(lambda: not ct129.is_alive(job), "it ends")
        assert ct129.process(job.pid).state == "Z"
    wait_until(lambda: ct129.process(job.pid) is None, "it is waited for")


def test_a_cut_link_is_silent_and_its_connections_live_on(ns_lab, operator, ct129):
    session = operator.start([*operator.ssh_argv("ct129"), "cat"])
    session.stdin.write(b"one\n")
    session.stdin.flush()
    assert session.stdout.readline() == b"one\n"
    with ct129.link_down():
        session.stdin.write(b"two\n")
        session.stdin.flush()
        assert select.select([session.stdout], [], [], 0.3)[0] == []
        assert session.poll() is None
    assert session.stdout.readline() == b"two\n"


def test_the_near_end_of_a_link_that_is_cut_refuses_at_once(ns_lab, operator, ct129):
    with ct129.link_down(near=True):
        done = operator.ssh("ct129", "true")
    assert done.code == 255
    assert "unreachable" in done.err
    assert operator.ssh("ct129", "true").code == 0


def test_a_tcp_reset_ends_connections_and_refuses_new_ones(ns_lab, operator, ct129):
    if not ct129.has("iptables"):
        pytest.skip("no iptables")
    session = operator.start([*operator.ssh_argv("ct129"), "cat"])
    session.stdin.write(b"one\n")
    session.stdin.flush()
    assert session.stdout.readline() == b"one\n"
    with ct129.tcp_reset():
        with pytest.raises(ConnectionRefusedError):
            connect(ct129.address, ct129.port)
        session.communicate(b"two\n", timeout=10)
        assert session.returncode == 255
    connect(ct129.address, ct129.port)


def test_a_killed_session_leaves_what_it_had_started(any_lab, any_operator):
    host = any_lab.hosts["kpro6"]
    session = any_operator.start([*any_operator.ssh_argv("kpro6"), "echo $$; exec sleep 1000"])
    pid = int(session.stdout.readline())
    assert host.kill_sessions() == 1
    assert session.wait(timeout=10) == 255
    assert pid in [job.pid for job in host.jobs()]
    host.end_jobs()


def test_without_sshd_new_connections_are_refused_and_old_ones_live_on(any_lab, any_operator):
    host = any_lab.hosts["ct129"]
    session = any_operator.start([*any_operator.ssh_argv("ct129"), "echo up; cat"])
    assert session.stdout.readline() == b"up\n"
    with host.sshd_down():
        with any_lab.in_operator(), pytest.raises(ConnectionRefusedError):
            connect(host.address, host.port)
        session.stdin.write(b"still\n")
        session.stdin.flush()
        assert session.stdout.readline() == b"still\n"
    assert any_operator.ssh("ct129", "true").code == 0


def test_a_paused_sshd_sends_no_banner(any_lab, any_operator):
    host = any_lab.hosts["ct129"]
    with host.sshd_paused():
        done = any_operator.ssh("ct129", "true", options=["-o", "ConnectTimeout=1"])
    assert done.code == 255
    assert "banner" in done.err
    assert any_operator.ssh("ct129", "true").code == 0


@pytest.mark.parametrize(("shell", "ask"), [("tcsh", "echo $tcsh"), ("fish", "echo $FISH_VERSION")])
def test_a_login_shell_is_another_one(any_lab, any_operator, shell, ask):
    host = any_lab.hosts["ct129"]
    if not host.has(shell):
        pytest.skip(f"no {shell}")
    with host.login_shell(host.exec(["which", shell]).out.strip()):
        assert any_operator.ssh("ct129", ask).out.strip()
    assert not any_operator.ssh("ct129", ask).out.strip()


def test_a_bashrc_makes_noise(any_lab, any_operator):
    host = any_lab.hosts["ct129"]
    with host.bashrc("echo noise; umask 077"):
        assert any_operator.ssh("ct129", "umask").out == "noise\n0077\n"
    assert any_operator.ssh("ct129", "umask").out == "0022\n"


def test_a_small_disk_is_full_soon(ns_lab, ct129):
    with ct129.small_disk("/mnt/a disk", "64k"):
        with pytest.raises(LabError, match="No space left"):
            ct129.write("/mnt/a disk/file", b"x" * 100_000)
        ct129.exec("touch '/mnt/a disk/other'", user="train")
    assert not ct129.exists("/mnt/a disk/file")


def test_a_folder_is_read_only(ns_lab, ct129):
    ct129.write("/tmp/before", "x")
    with ct129.read_only("/tmp"):
        with pytest.raises(LabError, match="Read-only"):
            ct129.write("/tmp/after", "x")
        assert ct129.read("/tmp/before") == b"x"
    ct129.write("/tmp/after", "x")


def test_hidepid_hides_the_processes_of_others(ns_lab, ct129):
    listing = "ls -d /proc/1"
    assert ct129.exec(listing, user="train").code == 0
    with ct129.hidepid():
        assert ct129.exec(listing, user="train", check=False).code != 0
        assert ct129.exec(listing).code == 0
        # The lab's own view is another one.
        assert ct129.alive(1)
    assert ct129.exec(listing, user="train").code == 0


def test_a_program_is_missing(ns_lab, ct129):
    ct129.write("/root/.local/bin/uv", "#!/bin/sh\n", mode=0o755)
    with ct129.without("sed", "uv"):
        assert not ct129.has("sed")
        assert not ct129.exists("/root/.local/bin/uv")
    assert ct129.has("sed")
    assert ct129.exists("/root/.local/bin/uv")


@pytest.mark.parametrize("program", ["busybox", "bash"])
def test_sh_is_another_program(ns_lab, ct129, program):
    if not ct129.has(program):
        pytest.skip(f"no {program}")
    before = ct129.exec("readlink -f /proc/$$/exe; :").out
    with ct129.sh_is(ct129.exec(["which", program]).out.strip()):
        # In two commands, so that the shell stays for the answer.
        assert ct129.exec("readlink -f /bin/sh; :").out.strip().endswith(program)
    assert ct129.exec("readlink -f /proc/$$/exe; :").out == before


@pytest.mark.parametrize("user", ["root", "train"])
def test_a_pid_is_used_again(ns_lab, ct129, user):
    if not ct129.exists("/proc/sys/kernel/ns_last_pid"):
        pytest.skip("a kernel without ns_last_pid")
    first = ct129.start(["sleep", "1000"])
    ct129.end_jobs()
    wait_until(lambda: ct129.process(first.pid) is None, "it is waited for")
    second = ct129.recycle_pid(first.pid, ["sleep", "2000"], user=user)
    assert (second.pid, second.argv) == (first.pid, ("sleep", "2000"))
    assert second.start_ticks >= first.start_ticks
    assert second.uid == {"root": 0, "train": 1500}[user]


def test_a_reboot_ends_all_and_keeps_the_disk(ns_lab, operator, ct129):
    ct129.write("/root/file", "kept")
    ct129.write("/run/file", "lost")
    job = ct129.start(["sleep", "1000"])
    session = operator.start([*operator.ssh_argv("ct129"), "echo up; cat"])
    assert session.stdout.readline() == b"up\n"
    boot_id = ct129.boot_id
    ct129.reboot()
    assert session.wait(timeout=10) == 255
    assert not ct129.is_alive(job)
    assert ct129.boot_id != boot_id
    assert ct129.read("/root/file") == b"kept"
    assert not ct129.exists("/run/file")
    # The key is the same: no warning.
    assert operator.ssh("ct129", "cat /proc/sys/kernel/random/boot_id").out.strip() == ct129.boot_id


def test_a_container_that_is_restarted_keeps_its_boot_id(ns_lab, ct129):
    boot_id, first = ct129.boot_id, ct129.process(1)
    ct129.reboot(new_boot_id=False)
    assert ct129.boot_id == boot_id
    assert ct129.process(1).start_ticks != first.start_ticks


def test_boot_ids_of_hosts_differ_and_are_not_this_machines(ns_lab):
    ids = [host.boot_id for host in ns_lab.hosts.values()]
    assert len({*ids, Path("/proc/sys/kernel/random/boot_id").read_text().strip()}) == 4


def test_a_delayed_link_takes_its_time(ns_lab, ct129):
    if not os.path.exists("/dev/net/tun"):
        pytest.skip("no /dev/net/tun")
    with ct129.delay(0.2):
        started = time.monotonic()
        connect(ct129.address, ct129.port)
        assert time.monotonic() - started >= 0.2
    connect(ct129.address, ct129.port)


@pytest.mark.parametrize("is_from_host", [False, True])
def test_a_slow_link_takes_its_time_both_ways(ns_lab, ct129, is_from_host):
    """Its burst goes at once; the rest cannot be quicker, whatever else runs."""
    num_bytes, bits_per_s = 512 << 10, 8e6
    began_s = time.monotonic()
    with ct129.rate(bits_per_s):
        python_seconds(ct129, num_bytes, is_from_host=is_from_host)
    assert time.monotonic() - began_s >= (num_bytes - LARGEST_PACKET_BYTES) * 8 / bits_per_s
    assert "tbf" not in ct129.exec(["tc", "qdisc", "show"]).out


@pytest.mark.parametrize("is_from_host", [False, True])
def test_a_raw_stream_is_timed(ns_lab, operator, ct129, is_from_host):
    assert python_seconds(ct129, 3 << 20, is_from_host=is_from_host) > 0
    if has_iperf3():
        assert iperf3_seconds(operator, ct129, 3 << 20, is_from_host=is_from_host) > 0
    assert not ct129.jobs()


# ---- what commands are given


def test_a_command_finds_the_labs_files_and_nothing_of_the_tests(any_lab, any_operator, monkeypatch):
    monkeypatch.setenv("DFLASHCTL_STRAY", "1")
    names = "HOME", "DFLASHCTL_HOSTS", "DFLASHCTL_SSH_CONFIG", "DFLASHCTL_STRAY", "SSH_AUTH_SOCK"
    told = any_operator.run([sys.executable, "-c", f"import os; print([os.environ.get(n) for n in {names}])"]).out
    files = [any_operator.home, any_operator.hosts_file, any_operator.ssh_config]
    assert told == f"{[*map(str, files), None, None]}\n"
    assert all(path.exists() for path in files)


def test_the_command_line_runs(operator):
    done = operator.cli("--help")
    assert (done.code, "train" in done.out) == (0, True)


def test_hosts_yaml_comes_in_two_styles(any_lab, tmp_path):
    by_alias = HostsFile.model_validate(yaml.safe_load(any_lab.hosts_yaml(tmp_path).read_text()))
    assert {name: host.ssh for name, host in by_alias.hosts.items()} == {n: n for n in any_lab.hosts}
    changed = any_lab.hosts_yaml(tmp_path, style="explicit", ct129={"protected": True})
    explicit = HostsFile.model_validate(yaml.safe_load(changed.read_text()))
    assert [host.via for host in explicit.hosts.values()] == [None, None, "jump"]
    assert explicit.hosts["ct129"].port == any_lab.hosts["ct129"].port != 22
    assert explicit.hosts["ct129"].protected
    assert by_alias.relay.unreachable == explicit.relay.unreachable == (("ct129", "kpro6"),)


def test_an_operator_who_knows_no_host_is_not_let_through(lab, tmp_path):
    operator = lab.operator(tmp_path, is_known=False)
    done = operator.ssh("ct129", "true")
    assert done.code == 255
    assert "Host key verification failed" in done.err
    assert operator.ssh("ct129", "true", options=["-o", "StrictHostKeyChecking=accept-new"]).code == 0
    assert operator.known_hosts.read_text()


# ---- coming and going


def test_down_leaves_nothing(mode):
    before = _seen_of_this_machine()
    lab = Lab(mode).up()
    job = lab.hosts["ct129"].start(["sleep", "1000"])
    folder = lab.folder
    assert _seen_of_this_machine() != before
    lab.down()
    assert not folder.exists()
    assert not Path(f"/proc/{job.outer_pid}").exists()
    assert _seen_of_this_machine() == before


def test_two_labs_do_not_meet(lab, mode, tmp_path):
    with Lab(mode) as other:
        other.hosts["ct129"].write(f"{other.hosts['ct129'].home()}/whose", "the other's")
        assert not lab.hosts["ct129"].exists(f"{lab.hosts['ct129'].home()}/whose")
        assert other.operator(tmp_path).ssh("ct129", "cat whose").out == "the other's"


def test_a_lab_ends_with_its_owner_and_the_next_one_clears_up(lab, mode):
    path = os.pathsep.join(entry for entry in sys.path if entry)
    argv = [sys.executable, "-c", UP_AND_WAIT, mode]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": path}, **pipes) as owner:
        folder, pid = owner.stdout.readline().split()
        owner.kill()
    wait_until(lambda: not Path(f"/proc/{int(pid)}").exists(), "it ends with its lab")
    assert Path(os.fsdecode(folder)).exists()
    remove_abandoned()
    assert not Path(os.fsdecode(folder)).exists()
    assert lab.folder.exists()


def test_a_host_that_does_not_start_is_an_error_and_leaves_nothing(ns_lab, monkeypatch):
    before = _seen_of_this_machine()
    monkeypatch.setattr("sshlab.lab.SSHD_CONFIG", "NoSuchOption yes\n")
    lab = Lab("namespaces")
    with pytest.raises(LabError, match="NoSuchOption"):
        lab.up()
    assert not lab.folder.exists()
    assert _seen_of_this_machine() == before


@pytest.mark.parametrize("asked", ["loopback", "none"])
def test_less_can_be_asked_for(monkeypatch, asked):
    monkeypatch.setenv("DFLASHCTL_LAB", asked)
    assert str(means()) == f"lab: {asked}: DFLASHCTL_LAB={asked}"


def _seen_of_this_machine():
    """What a lab could leave beside its folder: processes of ours, mounts, and links."""
    return (
        {process.outer_pid for process in descendants(os.getpid())},
        Path("/proc/self/mountinfo").read_text(),
        [name for _, name in socket.if_nameindex()],
    )
