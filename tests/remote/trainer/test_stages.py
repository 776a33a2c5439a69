import threading
import traceback

import pytest

from dflashctl_remote.spec.events import StageLoad
from dflashctl_remote.trainer.queues import BoundedQueue, Closed
from dflashctl_remote.trainer.stages import Line, limiting


def test_a_stage_that_dies_stops_the_others_and_its_error_keeps_its_traceback():
    line = Line()
    first: BoundedQueue[int] = BoundedQueue(1)
    second: BoundedQueue[int] = BoundedQueue(1)
    line.keep(first, second)

    def endless(load):
        number = 0
        while True:
            first.put(number)
            number += 1

    def dies_at_three(load):
        while True:
            if (number := first.get()) == 3:
                raise RuntimeError("the third one")
            second.put(number)

    line.start("loader", endless)
    line.start("target", dies_at_three)
    taken = []
    with pytest.raises(Closed):
        while True:
            taken.append(second.get())
    line.close()
    assert taken == [0, 1, 2][: len(taken)]
    with pytest.raises(RuntimeError, match="the third one") as raised:
        line.raise_if_broken()
    assert "dies_at_three" in "".join(traceback.format_exception(raised.value))
    assert not any(thread.name in ("loader", "target") for thread in threading.enumerate())


def test_closing_a_line_whose_stages_wait_ends_them():
    line = Line()
    queue: BoundedQueue[int] = BoundedQueue(1)
    line.keep(queue)
    line.start("target 0", lambda load: queue.get() and None)
    line.close()
    line.raise_if_broken()
    assert not any(thread.name == "target 0" for thread in threading.enumerate())


def test_loads_of_one_kind_are_told_together_and_since_the_last_time():
    line = Line()
    for name, busy_s, starved_s in (("loader", 1.0, 0.0), ("target 0", 8.0, 1.0), ("target 1", 6.0, 3.0)):
        line.start(name, lambda load, busy_s=busy_s, starved_s=starved_s: _spend(load, busy_s, starved_s))
    line.close()
    told = {stage.name: stage for stage in line.taken(10.0)}
    assert (told["target"].count, told["target"].busy, told["target"].starved) == (
        2,
        pytest.approx(0.7),
        pytest.approx(0.2),
    )
    assert limiting(tuple(told.values())) == "target"
    assert all(stage.busy == 0 for stage in line.taken(10.0))


def _spend(load, busy_s, starved_s):
    load.busy_s += busy_s
    load.starved_s += starved_s


def test_nothing_limits_what_has_done_nothing():
    assert limiting(()) is None
    assert limiting((StageLoad(name="target", count=1, busy=0.0, starved=0.0, held_up=0.0),)) is None
