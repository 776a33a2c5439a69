import threading

import pytest

from dflashctl.errors import HostUnreachable
from dflashctl.transport.fake_shell import FakeShell
from dflashctl.transport.fan_out import NUM_AT_ONCE, fan_out
from dflashctl.transport.shell import Answer, Script

HELLO = Script("hello", "echo hi")


def host(name: str, answer: Answer | Exception | None = None) -> FakeShell:
    return FakeShell({"hello": [answer or Answer(0, name.encode(), "")]}, name)


def hello(shell) -> bytes:
    return shell.run(HELLO).out


def test_each_host_is_asked_and_told_by_name():
    assert dict(fan_out([host("a"), host("b")], hello, 20)) == {"a": b"a", "b": b"b"}


def test_nobody_to_ask_is_no_answer():
    assert list(fan_out([], hello, 20)) == []


def test_an_unreachable_host_is_an_answer_too():
    gone = HostUnreachable("b is gone", host="b")
    assert dict(fan_out([host("a"), host("b", gone)], hello, 20)) == {"a": b"a", "b": gone}


def test_answers_come_as_they_are_given_and_the_silent_come_last():
    never = threading.Event()

    def ask(shell):
        if shell.name != "living":
            never.wait()
        return hello(shell)

    found = fan_out([host("dead 1"), host("dead 2"), host("dead 3"), host("living")], ask, 0.5)
    assert next(found) == ("living", b"living")
    rest = list(found)
    never.set()
    assert [name for name, _ in rest] == ["dead 1", "dead 2", "dead 3"]
    assert all(isinstance(error, HostUnreachable) and "within 0.5 s" in error.message for _, error in rest)
    assert rest[0][1].hint == "dflashctl hosts check dead 1"


def test_many_dead_hosts_do_not_delay_the_one_behind_them():
    never = threading.Event()

    def ask(shell):
        if shell.name != "living":
            never.wait()
        return hello(shell)

    dead = [host(f"dead {number}") for number in range(3 * NUM_AT_ONCE)]
    assert next(fan_out([*dead, host("living")], ask, 20)) == ("living", b"living")
    never.set()


def test_hosts_are_asked_before_anybody_waits_for_the_first():
    asked = threading.Event()
    found = fan_out([host("a")], lambda shell: asked.set(), 20)
    assert asked.wait(20)
    assert list(found) == [("a", None)]


def test_a_bug_in_the_question_is_not_taken_for_an_answer():
    with pytest.raises(ZeroDivisionError):
        list(fan_out([host("a")], lambda shell: 1 // 0, 20))


def test_threads_do_not_keep_the_command_from_ending():
    never = threading.Event()
    list(fan_out([host("a")], lambda shell: never.wait(), 0.05))
    assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("ask-"))
    never.set()
