"""The doctor on real hosts: what is wrong there is said, with its cure, and what is well is not complained of."""

import json

import pytest
import yaml

MARKED_SMI = """#!/bin/sh
case "$*" in
*compute-apps*) echo 'GPU-aa, {pid}, 20000' ;;
*) echo '0, GPU-aa, NVIDIA RTX A6000, 49140, 20100, 570.133.07, 8.6' ;;
esac
"""


@pytest.fixture
def check(operator):
    """`hosts check` for machines: its exit code, and by host the findings by topic, or the error."""

    def run(*names):
        done = operator.cli("hosts", "check", *names, "--json")
        assert done.out, done.err
        found = {}
        for host in json.loads(done.out)["hosts"]:
            found[host["host"]] = host.get("error") or {line["topic"]: line for line in host["findings"]}
        return done.code, found

    return run


@pytest.fixture
def hosts_say(lab, operator):
    """Rewrites the operator's hosts.yaml with further fields of hosts."""

    def write(**changes):
        assert lab.hosts_yaml(operator.hosts_file.parent, **changes) == operator.hosts_file

    return write


def test_sound_hosts_have_nothing_red_and_the_way_to_each_is_told(ns_lab, check):
    code, found = check("jump", "ct129", "kpro6")
    assert code == 0
    assert {line["level"] for host in found.values() for line in host.values()} <= {"ok", "note"}
    assert found["ct129"]["link"]["text"].startswith("root@198.18.2.2:2222 directly; answers in ")
    assert found["kpro6"]["link"]["text"].startswith("root@198.18.3.2 via jump (198.18.1.2); answers in ")
    assert "a PID namespace of its own (container" in found["ct129"]["processes"]["text"]
    assert found["ct129"]["stdout"]["level"] == "ok"
    assert found["ct129"]["clock"]["text"].startswith("as here")


def test_no_host_named_means_all_of_them_and_this_machine(lab, check):
    _, found = check()
    assert list(found) == ["local", "jump", "ct129", "kpro6"]


def test_one_machine_under_two_aliases_is_told_if_one_is_not_protected(ns_lab, operator):
    content = yaml.safe_load(operator.hosts_file.read_text())
    content["hosts"] |= {"twin": {"ssh": "198.18.2.2", "port": 2222, "user": "root"}}
    content["hosts"]["ct129"]["protected"] = True
    operator.hosts_file.write_text(yaml.safe_dump(content))
    done = operator.cli("hosts", "check", "jump", "ct129", "kpro6", "twin", "--json")
    assert done.code == 0, done.err
    (twins,) = json.loads(done.out)["same_machine"]
    assert twins["hosts"] == ["ct129", "twin"]
    assert twins["finding"]["text"] == "ct129 and twin are one machine, and only ct129 is protected"
    shown = operator.cli("hosts", "check", "ct129", "twin").out
    assert shown.splitlines()[-2].startswith("note same machine ct129 and twin are one machine")


def test_screen_of_a_host_fits_a_terminal(lab, operator):
    done = operator.cli("hosts", "check", "ct129")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].startswith("ct129 ")
    assert len(lines) <= 40
    assert any(line.startswith("ok   sh ") for line in lines)


def test_nothing_is_changed_and_nothing_left_running(ns_lab, ct129, operator):
    everything = "find /root /home /tmp /var/tmp /etc /usr/local /dev/shm /run -newer /run/before -not -type d"
    ct129.exec("touch /run/before")
    assert operator.cli("hosts", "check", "ct129").code == 0
    assert ct129.exec(everything).out.split() == []
    ct129.exec("touch /root/after")
    assert ct129.exec(everything).out.split() == ["/root/after"]
    assert ct129.jobs() == ()


@pytest.mark.parametrize("program", ["/bin/tcsh", "/usr/bin/fish"])
def test_login_shell_of_another_kind_is_named_and_fine(ns_lab, ct129, check, program):
    with ct129.login_shell(program):
        code, found = check("ct129")
    assert code == 0
    shell = found["ct129"]["login shell"]
    assert shell["level"] == "ok" and f"{program} (no POSIX shell; fine" in shell["text"]


@pytest.mark.parametrize(
    ("program", "name"), [("/bin/busybox", "busybox"), ("/bin/bash", "bash"), ("/bin/dash", "dash")]
)
def test_flavour_of_sh_is_told(ns_lab, ct129, check, program, name):
    with ct129.sh_is(program):
        code, found = check("ct129")
    assert code == 0
    assert found["ct129"]["sh"]["text"].startswith(name)


def test_what_a_bashrc_prints_is_counted_and_the_rest_is_still_read(lab, ct129, check):
    with ct129.bashrc("echo 'Welcome to ct129'; echo uid=12345\n"):
        code, found = check("ct129")
    assert code == 0
    noise = found["ct129"]["stdout"]
    assert noise["level"] == "note"
    assert "prints 27 bytes before every answer ('Welcome to ct129 uid=12345')" in noise["text"]
    assert "interactive" in noise["cure"]
    assert found["ct129"]["processes"]["level"] == "ok"


def test_hidden_processes_are_said_to_a_user_and_not_to_root(ns_lab, ct129, check, hosts_say):
    with ct129.hidepid():
        assert check("ct129")[1]["ct129"]["processes"]["level"] == "ok"
        hosts_say(ct129={"user": "train"})
        processes = check("ct129")[1]["ct129"]["processes"]
    assert processes["level"] == "note"
    assert "cannot be seen (hidepid=" in processes["text"]


def test_no_interpreter_is_red_where_jobs_are_to_run(ns_lab, ct129, check, hosts_say):
    hosts_say(ct129={"roles": ["evaluate"]})
    with ct129.without("python3"):
        code, found = check("ct129")
    assert code == 4
    environment = found["ct129"]["environment"]
    assert (environment["level"], environment["text"]) == ("bad", "ct129 has no interpreter python3")
    assert environment["cure"]


def test_python_without_torch_is_red_where_jobs_are_to_run(ns_lab, ct129, check, hosts_say):
    hosts_say(ct129={"roles": ["train"]})
    code, found = check("ct129")
    assert code == 4
    assert "need torch" in found["ct129"]["environment"]["text"]
    hosts_say(ct129={"roles": ["store"]})
    code, found = check("ct129")
    assert code == 0
    assert "not needed to store" in found["ct129"]["environment"]["text"]


def test_missing_uv_is_red_with_its_cure(ns_lab, ct129, check, hosts_say):
    hosts_say(ct129={"env": "uv"})
    with ct129.without("uv"):
        code, found = check("ct129")
    assert code == 4
    environment = found["ct129"]["environment"]
    assert "says env: uv, and uv is not there" in environment["text"]
    assert "install.sh" in environment["cure"]


def test_full_disk_is_red(ns_lab, ct129, check, hosts_say):
    hosts_say(ct129={"workdir": "/mnt/full disk"})
    with ct129.small_disk("/mnt/full disk", "64k"):
        ct129.exec("dd if=/dev/zero of='/mnt/full disk/fill' bs=4k count=64", check=False)
        code, found = check("ct129")
    assert code == 4
    folder = found["ct129"]["work folder"]
    assert (folder["level"], folder["text"]) == ("bad", "/mnt/full disk: 0.0 GiB of 0.0 GiB free")
    assert "du -xh '/mnt/full disk'" in folder["cure"]


def test_work_folder_that_may_not_be_written_is_red(ns_lab, ct129, check, hosts_say):
    hosts_say(ct129={"user": "train", "workdir": "/root/work"})
    code, found = check("ct129")
    assert code == 4
    assert "/root/work cannot be written" in found["ct129"]["work folder"]["text"]


def test_read_only_tmp_is_noted_and_hinders_nothing(ns_lab, ct129, check):
    with ct129.read_only("/tmp"):
        code, found = check("ct129")
    assert code == 0
    assert found["ct129"]["temporary"]["level"] == "note"
    assert "TMPDIR" in found["ct129"]["temporary"]["cure"]


def test_wrong_user_is_unreachable_in_one_sentence(lab, check, hosts_say):
    hosts_say(ct129={"user": "nobody-here"})
    code, found = check("ct129")
    assert code == 3
    assert "nobody-here" in found["ct129"]["message"]
    assert found["ct129"]["exit_code"] == 3


def test_dead_host_does_not_hide_the_living(lab, ct129, operator, check):
    with ct129.sshd_down():
        code, found = check("ct129", "jump", "kpro6")
        done = operator.cli("hosts", "check", "ct129", "jump", "kpro6")
    assert code == 3 and done.code == 3
    assert "ct129" in found["ct129"]["message"]
    assert found["jump"]["sh"]["level"] == "ok" and found["kpro6"]["sh"]["level"] == "ok"
    shown = done.out.splitlines()
    assert any(line.startswith("ct129  unreachable") for line in shown)
    assert any(line.startswith("kpro6  ") for line in shown)


def test_unknown_host_is_a_usage_error_before_anybody_is_asked(lab, operator):
    done = operator.cli("hosts", "check", "kpro", "ct129")
    assert done.code == 2
    assert "host kpro is not in" in done.err and "did you mean kpro6?" in done.err
    assert done.out == ""


@pytest.mark.parametrize("user", ["root", "train"])
def test_stranger_on_a_gpu_is_shown_and_never_touched(ns_lab, ct129, check, hosts_say, user):
    hosts_say(ct129={"user": user})
    stranger = ct129.start(["/bin/sleep", "600"], user="train")
    ct129.write("/usr/local/bin/nvidia-smi", MARKED_SMI.format(pid=stranger.pid), mode=0o755)
    try:
        code, found = check("ct129")
    finally:
        ct129.exec(["rm", "/usr/local/bin/nvidia-smi"])
    assert code == 0
    gpu = found["ct129"]["GPU 0"]
    assert gpu["level"] == "note"
    assert f"held by pid {stranger.pid} of train (sleep)" in gpu["text"]
    assert ct129.is_alive(stranger)


def test_gpu_held_from_outside_the_container_is_not_called_free(ns_lab, ct129, check):
    ct129.write("/usr/local/bin/nvidia-smi", MARKED_SMI.format(pid=3999999), mode=0o755)
    try:
        _, found = check("ct129")
    finally:
        ct129.exec(["rm", "/usr/local/bin/nvidia-smi"])
    assert "held by pid 3999999 (not visible from here)" in found["ct129"]["GPU 0"]["text"]
