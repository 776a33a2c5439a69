import pytest

from dflashctl.engines.base import SpecCounters


def test_tau_counts_the_bonus_token():
    assert SpecCounters(100, 700, 180, ()).tau == pytest.approx(2.8)
    assert SpecCounters(100, 700, 180, ()).acceptance_rate == pytest.approx(180 / 700)


def test_without_steps_there_is_no_tau():
    assert SpecCounters(0, 0, 0, ()).tau is None
    assert SpecCounters(0, 0, 0, ()).acceptance_rate is None


def test_a_difference_takes_positions_that_were_not_there_before():
    earlier = SpecCounters(10, 20, 5, (4, 1))
    later = SpecCounters(30, 100, 25, (15, 8, 2))
    assert later.since(earlier) == SpecCounters(20, 80, 20, (11, 7, 2))


def test_counters_that_fell_mean_a_new_start():
    with pytest.raises(ValueError, match="started anew"):
        SpecCounters(5, 10, 1, ()).since(SpecCounters(6, 12, 2, ()))
