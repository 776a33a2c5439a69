import pytest

from dflashctl_remote.evaluate.interval import tau_interval


def test_prompts_that_are_all_alike_leave_no_doubt() -> None:
    assert tau_interval([[3, 5]] * 6) == (4.0, 4.0)


def test_the_interval_holds_the_pooled_tau_and_comes_out_the_same_each_time() -> None:
    steps = [[1, 2, 3], [4, 4], [1] * 9, [7, 8], [2, 2, 2], [5]]
    low, high = tau_interval(steps) or (0.0, 0.0)
    pooled = sum(map(sum, steps)) / sum(map(len, steps))
    assert low < pooled < high
    assert tau_interval(steps) == (low, high)


def test_it_is_drawn_by_prompt_and_not_by_step() -> None:
    """One prompt of a hundred good steps among bad ones is one prompt."""
    lucky = [[10] * 100, [1] * 100, [1] * 100, [1] * 100, [1] * 100]
    low, high = tau_interval(lucky) or (0.0, 0.0)
    assert low == pytest.approx(1.0)
    assert high > 4.0


@pytest.mark.parametrize("steps", [[[3]] * 4, [[]] * 8])
def test_too_little_gives_none(steps: list[list[int]]) -> None:
    assert tau_interval(steps) is None
