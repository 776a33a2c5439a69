import pytest

from dflashctl.views.palette import binary, duration, si, sparkline


@pytest.mark.parametrize(
    ("seconds_s", "said"),
    [(12.2, "12 s"), (59.6, "60 s"), (185, "3 min 05 s"), (7620, "2 h 07 min"), (273_600, "3 d 04 h")],
)
def test_durations_read_as_people_say_them(seconds_s, said):
    assert duration(seconds_s) == said


def test_bytes_are_binary_and_figures_have_three_places():
    assert binary(3 * 2**30) == "3.0 GiB"
    assert si(1_730_000_000) == "1.73G"


def test_falling_loss_is_a_falling_line():
    line = sparkline([8.0, 6.0, 4.0, 2.0], width=4)
    assert list(line) == sorted(line, reverse=True)
    assert len(set(line)) == 4


def test_more_values_than_columns_are_averaged():
    assert len(sparkline([float(i) for i in range(1000)], width=10)) == 10


def test_ascii_line_has_only_ascii():
    assert sparkline([1.0, 2.0], width=2, is_ascii=True).isascii()


def test_constant_values_and_none_are_no_error():
    assert len(sparkline([1.0, 1.0], width=5)) == 2
    assert sparkline([], width=5) == ""
