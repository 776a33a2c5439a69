import random

import pytest

from dflashctl.stages.status.trend import WINDOW, pace_s, trend


@pytest.fixture
def steps(step):
    def make(losses, first=1):
        return [step(first + number, loss=loss) for number, loss in enumerate(losses)]

    return make


def noisy(mean, num, seed=0):
    chance = random.Random(seed)
    return [chance.gauss(mean, 0.1) for _ in range(num)]


def test_a_rise_is_seen_through_the_noise_of_steps(steps):
    found = trend([steps(noisy(1.3, 100) + noisy(1.4, 100, seed=1))])
    assert found.warning.startswith("rising: 1.2")


def test_a_rise_long_ago_is_seen_in_pieces_far_apart(steps):
    found = trend([steps([2.0] * 40), steps([1.3] * 40, first=14_000), steps([1.4] * 40, first=16_000)])
    assert found.loss == pytest.approx(1.4)
    assert found.warning == "rising: 1.300 -> 1.400 since step 14,019"


def test_noise_is_no_rise(steps):
    for seed in range(30):
        found = trend([steps(noisy(1.3, 80, seed=100 * seed + place), first=1000 * place + 1) for place in range(16)])
        assert found.warning == "", seed


def test_a_falling_loss_is_the_lowest_so_far(steps):
    found = trend([steps([3.0 - 0.01 * number for number in range(200)])])
    assert found.text == "1.205 (mean of 40 steps), the lowest so far, -0.400 since step 140"
    assert found.warning == ""


def test_few_steps_make_no_trend(steps):
    assert trend([steps([2.0] * (2 * WINDOW - 1))]).text == "2.000 (one step; too few for a trend)"
    assert trend([[], []]) is None


def test_a_pace_needs_two_steps(steps):
    assert pace_s(steps([1.0])) is None
    assert pace_s(steps([1.0] * 11)) == pytest.approx(1.0)
