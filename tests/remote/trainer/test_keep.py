import math
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflashctl_remote.spec.manifest import write_manifest
from dflashctl_remote.trainer.keep import Kept, kept_of, to_delete

HOUR = 3600.0


@dataclass(frozen=True)
class Policy:
    keep: int = 2
    keep_best: int = 1
    every_hours: float | None = None


def every(minutes: float, *taus: float | None) -> list[Kept]:
    """Checkpoints 0, 10, 20, ... so many minutes apart, with these taus."""
    return [Kept(10 * i, 1000.0 + 60 * minutes * i, tau) for i, tau in enumerate(taus)]


def stay(checkpoints: list[Kept], policy: Policy) -> list[int]:
    gone = to_delete(checkpoints, policy)
    return [one.step for one in checkpoints if one.step not in gone]


def test_step_0_and_the_newest_stay() -> None:
    assert stay(every(1, *[None] * 6), Policy(keep=2, keep_best=0)) == [0, 40, 50]
    assert stay(every(1, *[None] * 6), Policy(keep=1, keep_best=0)) == [0, 50]


def test_the_best_by_measured_tau_stays_whatever_its_age() -> None:
    checkpoints = every(1, None, 2.0, 3.5, 3.0, None, 3.1, 2.9)
    assert stay(checkpoints, Policy(keep=1, keep_best=1)) == [0, 20, 60]
    assert stay(checkpoints, Policy(keep=1, keep_best=2)) == [0, 20, 50, 60]


def test_of_equal_taus_the_newer_stays() -> None:
    assert stay(every(1, None, 3.0, 3.0, None), Policy(keep=1)) == [0, 20, 30]


def test_what_was_not_measured_is_never_the_best() -> None:
    assert stay(every(1, None, 1.2, None, None), Policy(keep=1)) == [0, 10, 30]
    assert stay(every(1, None, 1.2, math.nan, None), Policy(keep=1)) == [0, 10, 30]


def test_one_in_so_many_hours_stays() -> None:
    checkpoints = every(30, *[None] * 9)
    assert stay(checkpoints, Policy(keep=1, keep_best=0, every_hours=2.0)) == [0, 40, 80]


def test_a_clock_that_is_set_back_does_not_stop_the_hourly_ones() -> None:
    checkpoints = [
        Kept(0, 90 * HOUR, None),
        Kept(1, 2 * HOUR, None),
        Kept(2, 2.5 * HOUR, None),
        Kept(3, 4 * HOUR, None),
    ]
    assert stay(checkpoints, Policy(keep=1, keep_best=0, every_hours=1.0)) == [0, 1, 3]


taus = st.one_of(st.none(), st.floats(1.0, 8.0))
runs = st.lists(taus, min_size=1, max_size=20)
policies = st.builds(Policy, st.integers(1, 4), st.integers(0, 3), st.one_of(st.none(), st.floats(0.1, 3.0)))


@given(runs, policies)
def test_asked_again_it_deletes_nothing_more_and_never_the_newest_or_the_best(
    taus: list[float | None], policy: Policy
) -> None:
    checkpoints = every(25, *taus)
    left = [one for one in checkpoints if one.step not in to_delete(checkpoints, policy)]
    assert to_delete(left, policy) == []
    assert left[-1] == checkpoints[-1]
    measured = [one.tau for one in checkpoints if one.tau is not None]
    if measured and policy.keep_best:
        assert max(measured) in [one.tau for one in left]


@given(runs, policies)
def test_deleting_as_one_goes_keeps_what_the_hours_keep_in_the_end(taus: list[float | None], policy: Policy) -> None:
    whole = every(25, *taus)
    there: list[Kept] = []
    for one in whole:
        there.append(one)
        there = [other for other in there if other.step not in to_delete(there, policy)]
    assert {one.step for one in there} == {one.step for one in whole} - set(to_delete(whole, policy))


@pytest.mark.parametrize(("about", "tau"), [({"tau": 3.25}, 3.25), ({}, None), ({"tau": "3"}, None)])
def test_tau_and_time_come_from_the_manifest(tmp_path: Path, about: dict[str, object], tau: float | None) -> None:
    manifest = write_manifest(tmp_path, "checkpoint", bundle_sha="b", about=about)
    assert kept_of(7, tmp_path) == Kept(7, manifest.created_at_s, tau)


def test_one_whose_manifest_cannot_be_read_counts_by_its_step_alone(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{")
    assert kept_of(7, tmp_path) == Kept(7, None, None)
