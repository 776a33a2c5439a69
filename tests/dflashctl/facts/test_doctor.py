from pathlib import Path

import pytest

from dflashctl.facts import doctor
from dflashctl.facts.doctor import clock_finding, link_finding, noise_finding, system_findings
from dflashctl.facts.finding import Finding, Told
from dflashctl.transport.files import read_script
from dflashctl.transport.local_shell import LocalShell
from dflashctl.transport.shell import Script

RECORDED = Path(__file__).parent / "recorded"
SHELLS = [("/bin/sh", "-s"), ("bash", "--posix", "-s"), ("busybox", "sh", "-s")]
CALLS = "doctor_identity; doctor_tools; doctor_processes; doctor_sessions; doctor_disks"


def recorded(name, **changes):
    """Findings by topic; a change of None takes the key away."""
    told = Told.read((RECORDED / f"{name}.txt").read_bytes())
    pairs = tuple(pair for pair in told.pairs if pair[0] not in changes)
    added = tuple((key, value) for key, value in changes.items() if value is not None)
    return {finding.topic: finding for finding in system_findings(Told(pairs + added))}


@pytest.mark.parametrize("name", ["system-dash-cgroup1", "system-bash", "system-busybox", "system-cgroup2"])
def test_recorded_hosts_are_in_order(name):
    assert {finding.level for finding in recorded(name).values()} == {"ok"}


@pytest.mark.parametrize("sh", SHELLS)
def test_script_asks_the_same_of_every_shell(sh, tmp_path):
    text = read_script(Path(doctor.__file__).parent, "doctor.sh")
    values = (("workdir", f'{tmp_path}/it\'s a "folder"'), ("probe_tools", "cat no-such-tool"))
    told = Told.read(LocalShell(sh=sh).run(Script("doctor", f"{text}\n{CALLS}\n", values)).out)
    assert told.one("tools_missing") == "no-such-tool"
    assert told.one("tools_work") == doctor.WORKING_TOOLS
    assert told.one("workdir") == f'{tmp_path}/it\'s a "folder"'
    assert told.one("workdir_above") == str(tmp_path)
    assert told.has("workdir_writable") and not told.has("workdir_exists")
    assert told.one("pid_namespace").startswith("pid:[")
    assert told.one("uid").isdigit()
    assert {finding.topic for finding in system_findings(told)} == {
        *("login shell", "sh", "processes", "sessions", "cgroups", "kernel")
    }


@pytest.mark.parametrize("sh", SHELLS)
def test_folder_cannot_be_made_below_a_file_or_a_link_to_nowhere(sh, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    text = read_script(Path(doctor.__file__).parent, "doctor.sh")
    for name in ("file", "link"):
        values = (("workdir", f"{tmp_path}/{name}/work"),)
        told = Told.read(LocalShell(sh=sh).run(Script("doctor", f"{text}\ndoctor_disks\n", values)).out)
        assert told.one("workdir_above") == f"{tmp_path}/{name}"
        assert not told.has("workdir_writable")


def test_nothing_told_is_never_in_order():
    assert {finding.topic: finding.level for finding in system_findings(Told())} == {
        "login shell": "unknown",
        "sh": "bad",
        "processes": "bad",
        "sessions": "unknown",
        "cgroups": "unknown",
        "kernel": "unknown",
    }


def test_flavour_of_sh_is_the_program_that_runs():
    assert recorded("system-busybox")["sh"].text.startswith("busybox (")
    assert recorded("system-bash")["sh"].text.startswith("bash 5.")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tools_missing": "setsid base64 timeout"}, "without setsid, base64"),
        ({"tools_work": "abcaYQ=="}, "do not what POSIX"),
        ({"printf_builtin": "0"}, "printf is a program"),
    ],
)
def test_shell_that_cannot_run_our_scripts_is_bad(changes, said):
    finding = recorded("system-dash-cgroup1", **changes)["sh"]
    assert finding.level == "bad" and said in finding.text


def test_tool_that_is_only_useful_is_named_and_no_more():
    finding = recorded("system-dash-cgroup1", tools_missing="timeout")["sh"]
    assert finding.level == "ok" and "without timeout" in finding.text


@pytest.mark.parametrize(("shell", "is_other"), [("/bin/tcsh", True), ("/usr/bin/fish", True), ("/bin/bash", False)])
def test_login_shell_of_another_kind_is_fine_and_said(shell, is_other):
    finding = recorded("system-dash-cgroup1", login_shell=shell)["login shell"]
    assert finding.level == "ok" and shell in finding.text
    assert ("no POSIX shell" in finding.text) is is_other


def test_own_pid_namespace_is_a_container():
    finding = recorded("system-dash-cgroup1", pid_namespace="pid:[4026532458]", container="lxc")["processes"]
    assert "a PID namespace of its own (container, lxc)" in finding.text
    assert "PID 1 is init" in finding.text


def test_proc_of_another_namespace_is_bad():
    finding = recorded("system-dash-cgroup1", nspid="4711 12")["processes"]
    assert finding.level == "bad" and "another PID namespace" in finding.text


@pytest.mark.parametrize("options", ["rw,relatime,hidepid=invisible", "rw,relatime,hidepid=2,gid=27"])
def test_hidden_processes_are_said_to_whoever_cannot_see_them(options):
    changes = {"proc_options": options, "init_visible": None}
    finding = recorded("system-dash-cgroup1", uid="1500", **changes)["processes"]
    assert finding.level == "note" and "cannot be seen (hidepid=" in finding.text
    assert recorded("system-dash-cgroup1", uid="0", **changes)["processes"].level == "ok"


IN_SESSION = {"systemd": "1", "cgroup": "0::/user.slice/user-1500.slice/session-7.scope", "user": "train"}


@pytest.mark.parametrize(
    ("changes", "level", "said"),
    [
        ({"logind_KillUserProcesses": "no"}, "ok", "lingering is off"),
        ({"logind_KillUserProcesses": "no", "linger": "1"}, "ok", "lingering is on"),
        ({"logind_KillUserProcesses": "yes", "logind_KillExcludeUsers": "root"}, "bad", "ends all processes of train"),
        ({"logind_KillUserProcesses": "yes", "linger": "1"}, "bad", "lingering does not prevent it"),
        ({"logind_KillUserProcesses": "yes", "logind_KillExcludeUsers": "root train"}, "ok", "leaves processes alone"),
        ({"logind_KillUserProcesses": "yes", "logind_KillOnlyUsers": "guest"}, "ok", "leaves processes alone"),
        ({}, "unknown", "does not tell"),
        ({"cgroup": "0::/system.slice/ssh.service"}, "ok", "no session of logind"),
        ({"cgroup": "0::/s/ssh@1.service", "sshd_unit": "KillMode=control-group"}, "bad", "kills all that it left"),
        ({"cgroup": "0::/s/ssh@1.service", "sshd_unit": "KillMode=process"}, "ok", "no session"),
    ],
)
def test_systemd_that_ends_runs_at_logout_is_bad(changes, level, said):
    finding = recorded("system-cgroup2", **{**IN_SESSION, **changes})["sessions"]
    assert (finding.level, said in finding.text) == (level, True), finding


def test_host_without_systemd_needs_none():
    finding = recorded("system-dash-cgroup1")["sessions"]
    assert finding.level == "ok" and "no systemd here, none needed" in finding.text


def test_rights_in_cgroups_are_told():
    assert "version 2, writable, cgroup.kill there" in recorded("system-cgroup2")["cgroups"].text
    assert (
        "not writable, no cgroup.kill"
        in recorded("system-cgroup2", cgroup_writable=None, cgroup_kill=None)["cgroups"].text
    )
    assert "version 1" in recorded("system-dash-cgroup1")["cgroups"].text


@pytest.mark.parametrize(("kernel", "level"), [("4.15.0-200-generic", "note"), ("5.3.0", "ok"), ("?", "unknown")])
def test_kernel_without_pidfds_is_noted(kernel, level):
    assert recorded("system-dash-cgroup1", kernel=kernel)["kernel"].level == level


def test_noise_of_the_login_shell_is_counted_and_quoted():
    finding = noise_finding(2048, b"\x1b[31mWelcome to\nct129!" + b"!" * 200)
    assert finding.level == "note" and "2048 bytes" in finding.text
    assert "?[31mWelcome to ct129" in finding.text and "\x1b" not in finding.text
    assert noise_finding(0, b"").level == "ok"


@pytest.mark.parametrize(
    ("told", "level", "text"),
    [
        ("1000.050000000\n", "ok", "as here, within 50 ms"),
        ("1000\n", "ok", "as here, within 1.0 s"),
        ("1000.N\n", "ok", "as here, within 1.0 s"),
        ("1001.600000000\n", "ok", "1.5 s ahead of this machine"),
        ("1060.100000000\n", "note", "60.0 s ahead of this machine: ages"),
        ("996\n", "note", "3.0 s behind this machine: ages"),
        ("996.100000000", "note", "3.9 s behind this machine: ages"),
        ("date: bad", "unknown", "date does not tell"),
        ("", "unknown", "date does not tell"),
    ],
)
def test_clock_is_compared_within_what_a_round_trip_leaves_open(told, level, text):
    finding = clock_finding(told, 1000.0, 1000.1)
    assert finding.level == level
    assert finding.text.startswith(text)


def test_clock_is_not_blamed_for_a_slow_link():
    assert clock_finding("1004.000", 1000.0, 1009.0).level == "ok"


def test_slow_link_is_noted():
    assert link_finding("root@192.0.2.1 via jump", 0.012, 0.4).text.endswith("answers in 12 ms, connecting took 400 ms")
    assert link_finding("x", 1.5, 4.0).level == "note"


def test_what_is_bad_has_a_cure():
    with pytest.raises(AssertionError):
        Finding("sh", "bad", "no cure")
