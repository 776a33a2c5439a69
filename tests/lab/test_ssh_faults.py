"""A host behind SSH that is not there, not willing, or lost on the way: what is said, and what was run."""

import secrets
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dflashctl.errors import DflashctlError, HostUnreachable, LinkLost
from dflashctl.transport.fan_out import fan_out
from dflashctl.transport.shell import Script
from shells import Shells, logins, told, with_options
from sshlab.host import wait_until

HELLO = Script("hello", "echo hi")
WAIT = "touch begun; until [ -e go ]; do sleep 0.05; done; rm go begun; echo done"
CUT_AFTER = Path(__file__).with_name("cut_after.py")


@pytest.fixture
def shells(operator):
    made = Shells(operator)
    yield made
    made.close()


@pytest.fixture
def asked():
    """Asks in a thread; gives the answer, or what was raised instead."""

    def ask(shell, script: Script, timeout_s: float = 30.0):
        found: list[object] = []

        def run() -> None:
            try:
                found.append(shell.run(script, timeout_s=timeout_s))
            except DflashctlError as error:
                found.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()

        def wait():
            thread.join(60)
            return found[0]

        return wait

    return ask


def begun(host) -> None:
    wait_until(lambda: host.exists(f"{host.home()}/begun"), "the script did not begin")


def refusal(shell) -> HostUnreachable:
    with pytest.raises(HostUnreachable) as caught:
        shell.run(HELLO)
    assert not isinstance(caught.value, LinkLost)
    assert (caught.value.host, caught.value.exit_code) == (shell.name, 3)
    assert "\n" not in caught.value.message and caught.value.hint
    return caught.value


def test_a_port_where_nothing_listens(ct129, shells):
    with ct129.sshd_down():
        assert f"{ct129.address}:{ct129.port}) refuses connections" in refusal(shells("ct129")).message
    assert told(shells("ct129"), "echo hi") == "hi\n"


def test_a_host_that_has_no_route(ns_lab, kpro6, shells):
    assert "there is no route to" in refusal(shells("far", address=kpro6.address)).message


def test_a_name_that_nobody_knows(shells):
    assert (
        "its address no-such-host.invalid is not known"
        in refusal(shells("odd", address="no-such-host.invalid")).message
    )


def test_a_host_that_takes_connections_and_says_nothing(ct129, operator, shells):
    with ct129.sshd_paused(), pytest.raises(HostUnreachable, match="no connection within 1 s") as caught:
        shells("ct129").run(HELLO, timeout_s=1)
    assert not isinstance(caught.value, LinkLost)


def test_a_wrong_user_is_told_with_the_keys_that_were_tried(lab, shells):
    error = refusal(shells("ct129", user="nobody-like-that"))
    assert "does not let nobody-like-that in" in error.message
    assert f"tried {lab.identity_file}" in error.message


def test_a_key_that_is_not_there_is_told(shells, tmp_path):
    error = refusal(shells("ct129", identity_file=str(tmp_path / "none")))
    assert f"there was no key to try, in the agent or a file; {tmp_path / 'none'} is not there" in error.message


def test_a_key_with_a_passphrase_is_told_and_nobody_is_asked(operator, shells, tmp_path):
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(tmp_path / "id")]
    subprocess.run(argv, check=True)
    error = refusal(shells("ct129", identity_file=str(tmp_path / "id")))
    assert f"{tmp_path / 'id'} has a passphrase and is not in the agent (ssh-add {tmp_path / 'id'})" in error.message


def test_a_jump_host_that_is_down_is_named(jump, shells):
    with jump.sshd_down():
        assert "kpro6 cannot be reached: its jump host jump cannot be reached" in refusal(shells("kpro6")).message


def test_a_host_that_the_jump_host_does_not_reach(jump, kpro6, shells):
    with kpro6.sshd_down():
        assert "its jump host jump gets no connection to" in refusal(shells("kpro6")).message
    assert told(shells("kpro6"), "echo hi") == "hi\n"


def test_a_session_that_is_killed_in_the_middle_is_lost_at_once(ct129, shells, asked):
    answer = asked(shells("ct129"), Script("wait", WAIT))
    begun(ct129)
    ct129.kill_sessions()
    assert isinstance(answer(), LinkLost)
    assert "wait on ct129 gave no complete answer (the connection was lost)" in answer().message
    assert told(shells("ct129"), "rm begun; echo hi") == "hi\n"


def test_a_connection_that_was_reset_is_lost_at_once_and_made_again(ns_lab, ct129, shells, asked):
    # What it says first is what makes a packet; the answer is to come when nothing can.
    answer = asked(shells("ct129"), Script("wait", f"{WAIT}; sleep 1; echo more"))
    begun(ct129)
    with ct129.tcp_reset():
        ct129.exec(["touch", "go"])
        assert isinstance(answer(), LinkLost)
        assert "refuses connections" in refusal(shells("ct129")).message
    assert told(shells("ct129"), "echo hi") == "hi\n"


@pytest.mark.parametrize("name", ["ct129", "kpro6"])
def test_a_connection_that_died_between_questions_is_made_again(lab, ns_lab, shells, name):
    shell, host = shells(name), lab.hosts[name]
    assert told(shell, "echo hi") == "hi\n"
    before = logins(host)
    host.kill_sessions()
    assert told(shell, "echo hi") == "hi\n"
    assert logins(host) == before + 1


def test_a_jump_that_died_between_questions_is_made_again(jump, shells):
    assert told(shells("kpro6"), "echo hi") == "hi\n"
    jump.kill_sessions()
    assert told(shells("kpro6"), "echo hi") == "hi\n"


def test_a_link_that_is_down_for_five_seconds_loses_nothing(ns_lab, ct129, shells, asked):
    before = logins(ct129)
    answer = asked(shells("ct129"), Script("wait", WAIT))
    begun(ct129)
    with ct129.link_down():
        ct129.exec(["touch", "go"])
        wait_until(lambda: not ct129.exists(f"{ct129.home()}/go"), "the script did not go on")
        threading.Event().wait(5)
    assert answer().out == b"done\n"
    assert logins(ct129) == before + 1


def test_a_link_that_stays_down_is_lost_in_time_and_the_next_question_finds_out(ns_lab, ct129, shells, asked):
    answer = asked(shells("ct129"), Script("wait", WAIT), timeout_s=3)
    begun(ct129)
    with ct129.link_down():
        assert isinstance(answer(), LinkLost)
    ct129.exec(["rm", "begun"])
    assert told(shells("ct129"), "echo hi") == "hi\n"


@pytest.mark.slow
def test_a_link_that_is_down_for_a_minute_is_noticed_whatever_the_limits_of_the_question(ns_lab, ct129, shells):
    stream = shells("ct129").stream(Script("wait", f"echo on; {WAIT}"), silence_s=600, timeout_s=600)
    assert next(stream) == b"on\n"
    with ct129.link_down(), pytest.raises(LinkLost):
        next(stream)
    ct129.exec(["touch", "go"])
    assert told(shells("ct129"), "echo hi") == "hi\n"


@pytest.mark.slow
def test_a_question_that_is_silent_for_longer_than_a_dead_link_may_be_is_answered(ct129, shells):
    assert told(shells("ct129"), "sleep 60; echo hi", timeout_s=90) == "hi\n"


def test_what_is_asked_over_a_dead_link_is_not_run_and_not_run_later_either(ns_lab, ct129, shells):
    mark = f"/tmp/{secrets.token_hex(8)}"
    shell = shells("ct129")
    assert told(shell, "echo hi") == "hi\n"
    with ct129.link_down(), pytest.raises(HostUnreachable) as caught:
        shell.run(Script("mark", 'touch "$mark"', (("mark", mark),)), timeout_s=2)
    assert not isinstance(caught.value, LinkLost)
    assert told(shell, "echo hi") == "hi\n"
    threading.Event().wait(1)
    assert not ct129.exists(mark)


def outcome_of_a_cut(host, operator, config: str, num_bytes: int, end: str) -> str:
    """What is said of a script if the link ends after so many bytes; checked against what was run."""
    mark = f"{host.home()}/{secrets.token_hex(8)}"
    command = f"{sys.executable} {CUT_AFTER} {host.address} {host.port} {num_bytes} {end} {operator.folder / 'count'}"
    operator.ssh_config.write_text(f"Host ct129\n ProxyCommand {command}\n{config}")
    shells = Shells(operator)
    script = Script("mark", 'touch "$mark"', (("padding", "x" * 70_000), ("mark", mark)))
    try:
        shells("ct129").run(script, timeout_s=30 if end == "break" else 1)
    except LinkLost:
        return "lost"
    except HostUnreachable:
        assert not host.exists(mark), num_bytes
        return "unreachable"
    finally:
        shells.close()
    assert host.exists(mark), num_bytes
    return "answered"


@pytest.mark.parametrize(("end", "num_steps"), [("silence", 3), ("break", 25)])
def test_unreachable_means_not_run_wherever_the_link_ends(ns_lab, ct129, operator, end, num_steps):
    """In the greeting, the login, the script, or after it: that is where the last bytes count."""
    config = operator.ssh_config.read_text()
    assert outcome_of_a_cut(ct129, operator, config, 10**9, end) == "answered"
    total = int((operator.folder / "count").read_text())
    cuts = [total * part // num_steps for part in range(num_steps)] + [total - 40 * part for part in range(num_steps)]
    seen = {outcome_of_a_cut(ct129, operator, config, cut, end) for cut in cuts}
    assert {"unreachable", "lost"} <= seen


def test_three_dead_hosts_do_not_delay_the_fourth(ns_lab, ct129, kpro6, shells):
    with ct129.sshd_paused():
        hosts = [
            shells("refusing", address="198.18.1.2", port=1),
            shells("unroutable", address=kpro6.address),
            shells("silent", ssh="ct129"),
            shells("jump"),
        ]
        found = list(fan_out(hosts, lambda shell: told(shell, "echo hi"), 3))
    answers = dict(found)
    assert answers["jump"] == "hi\n"
    assert found[-1][0] == "silent"
    assert all(isinstance(answers[name], HostUnreachable) for name in ("refusing", "unroutable", "silent"))


@pytest.mark.parametrize("where", ["connecting", "waiting"])
def test_ctrl_c_works_at_once(ct129, operator, where):
    code = (
        "import os, pathlib, time, yaml\n"
        "from dflashctl.config.hosts import HostsFile\n"
        "from dflashctl.config.ssh import ssh_settings\n"
        "from dflashctl.transport.shell import Script\n"
        "from dflashctl.transport.ssh_shell import open_shell\n"
        "hosts = HostsFile.model_validate(yaml.safe_load(pathlib.Path(os.environ['DFLASHCTL_HOSTS']).read_text()))\n"
        "shell = open_shell('ct129', hosts, ssh_settings(os.environ))\n"
        "print('asking', flush=True)\n"
        "shell.run(Script('wait', 'touch begun; sleep 60'), timeout_s=60)\n"
    )
    if where == "connecting":
        with ct129.sshd_paused():
            _interrupted(operator.start([sys.executable, "-c", code]), lambda: threading.Event().wait(1))
    else:
        _interrupted(operator.start([sys.executable, "-c", code]), lambda: begun(ct129))
        ct129.exec(["rm", "begun"])


def _interrupted(child, when) -> None:
    assert child.stdout.readline() == b"asking\n"
    when()
    child.send_signal(signal.SIGINT)
    # Far less than any limit of a step.
    _, err = child.communicate(timeout=4)
    assert err.rstrip().endswith(b"KeyboardInterrupt"), err


def test_failures_write_nothing_to_stderr_by_themselves(ct129, shells, capfd):
    with ct129.sshd_down():
        refusal(shells("ct129"))
    refusal(shells("ct129", user="nobody-like-that"))
    assert capfd.readouterr() == ("", "")


def test_options_of_a_file_that_openssh_refuses(operator, shells):
    with_options(operator, "Nonsense yes")
    with pytest.raises(DflashctlError, match="ssh_config cannot be used for ct129"):
        shells("ct129").run(HELLO)
