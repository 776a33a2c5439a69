import threading

import pytest

from dflashctl.operations.relay.crew import share_out


def nothing():
    pass


def test_each_item_is_taken_once():
    taken = []
    share_out(range(100), [taken.append] * 4, nothing)
    assert sorted(taken) == list(range(100))


def test_without_work_or_lanes_it_ends_at_once():
    share_out([], [print], nothing)
    share_out([], [], nothing)


def test_the_first_problem_ends_all_and_wakes_whoever_waits():
    woken, taken, both = threading.Event(), [], threading.Barrier(2)

    def fails(item):
        both.wait(10)
        raise ValueError("no")

    def waits(item):
        taken.append(item)
        both.wait(10)
        assert woken.wait(10)
        raise OSError("cut")

    with pytest.raises(ValueError, match="no"):
        share_out(range(1, 100), [fails, waits], woken.set)
    assert len(taken) == 1


def test_an_interrupt_of_the_one_that_waits_ends_all_and_is_passed_on(monkeypatch):
    woken, taken = threading.Event(), []

    def waits(item):
        taken.append(item)
        assert woken.wait(10)

    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr("dflashctl.operations.relay.crew._Crew.wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        share_out(range(1, 100), [waits], woken.set)
    assert len(taken) <= 1
