"""The trap that this tool exists beside: looking for a process by a pattern, over ssh, finds the shell that looks.

sshd has the login shell run the command as `bash -c COMMAND`, and the pattern is in that command line.
"""

import pytest

TRAINER = ["sh", "-c", "while :; do sleep 1; done # train_drafter.py"]


@pytest.fixture
def host(ns_lab, ct129):
    """An isolated one: a pattern finds what runs anywhere on a machine."""
    if not ct129.has("pkill"):
        pytest.skip("no procps")
    return ct129


def test_pkill_kills_the_ssh_shell_that_runs_it(host, operator):
    trainer = host.start(TRAINER)
    done = operator.ssh("ct129", "pkill -f train_drafter; echo the trainer is stopped")
    # As if the connection had failed; the rest of the command was not run.
    assert (done.code, done.out) == (255, "")
    assert not host.is_alive(trainer)


def test_pkill_kills_the_ssh_shell_even_if_there_is_nothing_to_find(host, operator):
    done = operator.ssh("ct129", "pkill -f train_drafter || true; echo nothing was running")
    assert (done.code, done.out) == (255, "")


def test_the_trap_does_not_show_when_tried_by_hand(host, operator):
    # One simple command: bash becomes it, and it leaves itself out.
    trainer = host.start(TRAINER)
    assert operator.ssh("ct129", "pkill -f train_drafter").code == 0
    assert not host.is_alive(trainer)


def test_pkill_kills_whatever_else_has_the_name_in_its_command_line(host, operator):
    reader = host.start(["tail", "-f", "/dev/null", "--", "train_drafter.log"])
    assert operator.ssh("ct129", "pkill -f train_drafter").code == 0
    assert not host.is_alive(reader)


def test_a_bracket_hides_the_pattern_but_not_the_name_elsewhere_in_the_command(host, operator):
    done = operator.ssh("ct129", "pkill -f '[t]rain_drafter'; echo alive")
    assert (done.code, done.out) == (0, "alive\n")
    done = operator.ssh("ct129", "pkill -f '[t]rain_drafter'; ls train_drafter.log; echo alive")
    assert (done.code, done.out) == (255, "")
