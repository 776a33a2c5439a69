from xml.etree import ElementTree

import pytest

from dflashctl.views.svg import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, Axis, Bar, Curve, plot


def test_a_plot_is_well_formed_and_names_itself():
    text = plot("a & b", Axis(0, 1, "x < y"), Axis(0, 1, "y"), [Curve("c", "spec", ((0.0, 0.0), (1.0, 1.0)))])
    assert ElementTree.fromstring(text).attrib["aria-label"] == "a & b"


def test_points_stay_within_the_frame():
    text = plot("t", Axis(0, 10, ""), Axis(0, 5, ""), [Curve("c", "spec", ((0.0, 0.0), (10.0, 5.0)), has_dots=True)])
    dots = [one for one in ElementTree.fromstring(text) if one.tag.endswith("circle")]
    places = [(float(one.attrib["cx"]), float(one.attrib["cy"])) for one in dots]
    assert places[0] == (LEFT, HEIGHT - BOTTOM)
    assert places[1][0] == WIDTH - RIGHT and 0 < places[1][1] < HEIGHT - BOTTOM


def test_on_a_log_axis_double_and_half_are_as_far_from_one():
    axis = Axis(0.5, 2.0, "", is_log=True)
    assert axis.share(1.0) == pytest.approx(0.5)


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.013), (0.0, 7.0), (0.0, 98765.0), (3.0, 3.0)])
def test_ticks_are_few_and_inside(low, high):
    ticks = Axis(low, high, "").ticks()
    assert 1 <= len(ticks) <= 7
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in ticks)


def test_one_is_always_marked_where_ratios_lie_on_both_sides():
    assert 1 in Axis(0.13, 19.0, "", is_log=True).ticks()


def test_a_bar_tells_its_figure():
    text = plot("t", Axis(0.5, 1.5, ""), Axis(0, 100, ""), bars=[Bar(1, 40, "position 1: 40.0 %")])
    assert "<title>position 1: 40.0 %</title>" in text
