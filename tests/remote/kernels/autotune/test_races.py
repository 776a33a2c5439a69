"""Each race, led into by events: what stock Triton does, and that it is gone with the patch.

A stock test that fails here means that upstream has mended it: then the patch can go.
"""

import pytest

from dflashctl_remote.kernels.autotune import races


def test_stock_loses_the_arguments_of_a_sweep_during_which_another_launch_ends(stock):
    seen = races.end_during_a_sweep()
    assert list(seen.errors) == ["slow"]
    assert "NoneType" in seen.errors["slow"]
    assert seen.num_benches > 3, "the fast thread has swept too"


def test_patched_sweeps_once_while_another_launch_waits(patched):
    assert races.end_during_a_sweep() == races.Crash(errors={}, num_benches=3)


def test_stock_zeroes_the_buffer_of_another_thread_and_says_nothing(stock):
    seen = races.zero_the_other_buffer()
    assert "first" not in seen.errors, "the thread that zeroed another's buffer has seen nothing"
    assert seen.first < 4
    assert seen.second >= 3


def test_patched_zeroes_the_buffer_of_its_own_call(patched):
    assert races.zero_the_other_buffer() == races.Zeroings(errors={}, first=4, second=4)


def test_stock_sweeps_a_cold_key_once_a_thread(stock):
    assert races.crowd_one_key(num_threads=4).num_benches > 3


@pytest.mark.parametrize("num_threads", [2, 4, 8])
def test_patched_sweeps_a_cold_key_once_for_all_threads(patched, num_threads):
    assert races.crowd_one_key(num_threads) == races.Crash(errors={}, num_benches=3)


def test_a_shared_deque_fails_a_thread_that_looks_through_it(stock):
    seen = races.append_while_iterating(races.identity_cache)
    assert seen.errors == {"reader": "RuntimeError: deque mutated during iteration"}
