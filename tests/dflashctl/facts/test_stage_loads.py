import pytest

from dflashctl.facts.stage_loads import RECENT_STEPS, limiting_of, recent_loads, waits_of
from dflashctl_remote.spec.events import StageLoad


def loads(*busy: float) -> tuple[StageLoad, ...]:
    names = ("loader", "target", "drafter")
    return tuple(
        StageLoad(name=name, count=1, busy=share, starved=1 - share, held_up=0.0)
        for name, share in zip(names, busy, strict=True)
    )


def test_shares_are_means_of_the_last_steps(step):
    old = [step(number, stages=loads(1.0, 0.0, 0.0)) for number in range(1, 6)]
    new = [step(number, stages=loads(0.0, number % 2, 0.4)) for number in range(6, 6 + RECENT_STEPS)]
    found = recent_loads(old + new)
    assert [load.busy for load in found] == pytest.approx([0.0, 0.5, 0.4])
    assert limiting_of(found) == "target"


def test_steps_of_other_stages_do_not_count(step):
    before = step(1, stages=tuple(load.model_copy(update={"count": 3}) for load in loads(1.0, 1.0, 1.0)))
    assert recent_loads([before, step(2), step(3, stages=loads(0.1, 0.2, 0.3))]) == loads(0.1, 0.2, 0.3)


def test_where_nothing_was_measured_nothing_is_said(step):
    assert recent_loads([]) == ()
    assert recent_loads([step(1, stages=loads(1.0, 1.0, 1.0)), step(2)]) == ()
    assert limiting_of(()) is None
    assert limiting_of(loads(0.0, 0.0, 0.0)) is None


def test_waits_are_told_where_there_are_any():
    assert waits_of(StageLoad(name="target", count=1, busy=0.6, starved=0.35, held_up=0.05)) == (
        "35 % starved, 5 % held up"
    )
    assert waits_of(StageLoad(name="target", count=1, busy=1.0, starved=0.001, held_up=0.0)) == ""
