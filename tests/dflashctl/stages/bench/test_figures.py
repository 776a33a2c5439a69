import math

import pytest

from dflashctl.engines.base import SpecCounters
from dflashctl.stages.bench import figures
from dflashctl.stages.bench.figures import Interval


def test_tpot_leaves_out_all_tokens_of_the_first_chunk(request_record):
    # 3 tokens at 1 s, then 2 + 1 + 2 until 6 s: 5 s for 5 tokens. (n - 1 would say 5/7.)
    request = request_record((1.0, 2.0, 4.0, 6.0), (3, 2, 1, 2))
    assert figures.tpot_s(request) == pytest.approx(1.0)


def test_tpot_takes_the_first_chunk_for_one_token_where_sizes_are_unknown(request_record):
    request = request_record((1.0, 3.0, 5.0), (2, 2, 2)).model_copy(update={"chunk_sizes_tokens": None})
    assert figures.tpot_s(request) == pytest.approx(4.0 / 5)


@pytest.mark.parametrize(("times", "sizes"), [((), ()), ((1.0,), (1,)), ((1.0,), (4,))])
def test_an_answer_of_one_chunk_has_no_tpot(request_record, times, sizes):
    assert figures.tpot_s(request_record(times, sizes)) is None


def test_an_answer_without_usage_has_no_tpot(request_record):
    assert figures.tpot_s(request_record(num_output_tokens=None)) is None


def test_the_gap_between_chunks_is_not_the_time_per_token(request_record):
    request = request_record((1.0, 2.0, 4.0), (1, 4, 4))
    assert figures.chunk_gaps_s(request) == (1.0, 2.0)
    assert figures.tpot_s(request) == pytest.approx(3 / 8)


def test_closed_loop_counts_from_sending_and_open_loop_from_the_intended_arrival(request_record):
    request = request_record((5.0, 6.0), intended_s=1.0, sent_s=4.0)
    assert figures.ttft_s(request, is_open_loop=False) == 1.0
    assert figures.ttft_s(request, is_open_loop=True) == 4.0
    assert figures.e2e_s(request, is_open_loop=False) == 2.0
    assert figures.e2e_s(request, is_open_loop=True) == 5.0


def test_quantiles_lie_between_the_two_nearest():
    assert figures.quantile([3.0, 1.0, 2.0, 4.0], 0.5) == 2.5
    assert figures.quantile([1.0, 2.0], 0.99) == pytest.approx(1.99)
    assert figures.quantile([7.0], 0.99) == 7.0


def test_the_mean_of_a_doubling_and_a_halving_is_one():
    assert figures.geometric_mean([2.0, 0.5]) == pytest.approx(1.0)


def test_an_interval_is_the_same_for_the_same_seed_and_holds_the_figure():
    values = [1.0, 1.1, 1.2, 1.3, 1.4]
    one = figures.bootstrap(values, figures.geometric_mean, seed=3)
    assert one == figures.bootstrap(values, figures.geometric_mean, seed=3)
    assert 1.0 <= one.low < figures.geometric_mean(values) < one.high <= 1.4


def test_values_that_are_all_the_same_leave_no_doubt():
    same = figures.bootstrap([2.0] * 5, figures.geometric_mean, seed=0)
    assert (same.low, same.high) == pytest.approx((2.0, 2.0))


def test_few_values_say_nothing_of_their_spread():
    assert figures.bootstrap([1.0, 2.0, 1.5, 1.2], figures.geometric_mean, seed=0) is None


def test_pooled_tau_weighs_steps_and_not_prompts():
    # 10 steps with 30 accepted, 30 steps with none: 1 + 30/40, not the mean of 4 and 1.
    parts = (SpecCounters(10, 70, 30, (10, 10, 10)), SpecCounters(30, 210, 0, (0,)))
    assert figures.pooled_tau(parts) == pytest.approx(1.75)
    assert figures.pooled(parts).accepted_per_position == (10, 10, 10)


def test_conditional_acceptance_is_of_the_steps_that_came_that_far():
    seen = SpecCounters(100, 300, 90, (60, 30, 0))
    assert figures.acceptance_by_position(seen) == ((0.6, 0.6), (0.3, 0.5), (0.0, 0.0))


def test_a_position_that_no_step_reached_has_no_conditional_acceptance():
    assert figures.acceptance_by_position(SpecCounters(10, 30, 0, (0, 0)))[1] == (0.0, None)
    assert figures.acceptance_by_position(SpecCounters(0, 0, 0, ())) == ()


@pytest.mark.parametrize(
    ("one", "other", "index"),
    [((1, 2, 3), (1, 2, 3), None), ((1, 2, 3), (1, 9, 3), 1), ((1, 2), (1, 2, 3), 2), ((), (1,), 0)],
)
def test_the_first_difference_counts_the_end_of_the_shorter_one(one, other, index):
    assert figures.first_difference(one, other) == index


def test_a_step_that_takes_four_times_as_long_needs_four_tokens():
    # 8 steps in 16 s are 2 s each; 20 tokens in 10 s are 0.5 s each.
    assert figures.step_cost(16.0, 8, 10.0, 20) == pytest.approx(4.0)
    assert figures.step_cost(16.0, 0, 10.0, 20) is None


def test_two_intervals_that_touch_can_still_be_told_apart():
    # 2.0 +- 0.3 and 1.5 +- 0.3 overlap; the difference is -0.5 +- 0.42.
    change = figures.difference(2.0, Interval(low=1.7, high=2.3), 1.5, Interval(low=1.2, high=1.8))
    assert change.high == pytest.approx(-0.5 + math.sqrt(0.18))
    assert change.low == pytest.approx(-0.5 - math.sqrt(0.18))
