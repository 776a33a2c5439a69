from pathlib import Path

import pytest

from dflashctl.cli.run_bench import refuse_regression
from dflashctl.errors import InvalidBenchmark
from dflashctl.stages.bench.compare import compare
from dflashctl.stages.bench.summary import summarise

FAST = (4.0, 4.1, 4.2, 4.0, 4.1)
SLOW = (8.0, 8.1, 8.2, 8.0, 8.1)


@pytest.fixture
def report(benchmark_lines):
    return lambda *arguments, **changes: summarise(benchmark_lines(*arguments, **changes), Path("/b"), {})


def change_of(comparison, name):
    return next(change for change in comparison.changes if change.name == name)


def test_a_fall_beyond_the_intervals_is_a_regression(report):
    result = compare(report(FAST), report(SLOW))
    assert change_of(result, "speed-up").outcome == "worse"
    assert "speed-up fell from 1.96 to 0.99" in result.regressions


def test_the_same_again_is_none(report):
    result = compare(report(FAST), report(FAST))
    assert change_of(result, "speed-up").outcome == "no difference"
    assert result.regressions == ()


def test_a_rise_is_better_and_fails_nothing(report):
    result = compare(report(SLOW), report(FAST))
    assert change_of(result, "speed-up").outcome == "better"
    assert result.regressions == ()


def test_a_fall_within_the_intervals_is_chance(report):
    wide, lower = report((4.0, 8.0, 16.0, 8.0, 8.0)), report((4.5, 9.0, 16.0, 8.0, 8.0))
    assert lower.speedup < wide.speedup
    assert change_of(compare(wide, lower), "speed-up").outcome == "no difference"


def test_a_lower_tau_is_a_regression(report):
    result = compare(report(FAST, accepted=8), report(FAST, accepted=4))
    assert "tau fell from 3.00 to 2.00" in result.regressions


def test_figures_without_an_interval_are_not_judged(report):
    result = compare(report((4.0, 4.0)), report((9.0, 9.0)))
    change = change_of(result, "speed-up")
    assert (change.outcome, change.note) == ("not judged", "too few prompts for an interval")
    assert result.regressions == ()


def test_bare_speed_is_shown_and_not_judged(report):
    change = change_of(compare(report(FAST), report(SLOW)), "output tok/s, c=1")
    assert change.before > change.after
    assert change.outcome == "not judged"


def test_outputs_that_are_not_the_baselines_any_more_are_a_regression(report):
    result = compare(report(), report(ids=(9, 1, 2, 3, 4, 5, 6, 7, 8), about={"dtype": "bfloat16"}))
    assert "outputs were the baseline's and are not any more" in result.regressions


def test_an_invalid_second_is_no_regression_and_proves_nothing(report):
    result = compare(report(), report(base_steps=2))
    assert result.regressions == ()
    with pytest.raises(InvalidBenchmark, match="nothing can be said of B"):
        refuse_regression(result)


def test_two_different_measurements_are_called_so(report):
    result = compare(report(), report(asked={"max_new_tokens": 64}))
    assert "max_new_tokens differs: 16 and 64" in result.caveats
    assert compare(report(), report()).caveats == ()
