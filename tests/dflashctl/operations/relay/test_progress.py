import threading

from dflashctl.operations.relay.progress import Progress, Snapshot


def seen(**changes):
    fields = {"total_bytes": 100, "done_bytes": 0, "kept_bytes": 0, "sent_bytes": 0, "hashed_bytes": 0}
    fields |= {
        "elapsed_s": 0.0,
        "active_s": 0.0,
        "idle_s": 0.0,
        "source_wait_s": 0.0,
        "target_wait_s": 0.0,
        "num_lanes": 1,
        "phase": "moving",
    }
    return Snapshot(**{**fields, **changes})


def test_bytes_that_came_are_counted_by_how_they_came():
    progress = Progress()
    progress.came("raw", 10)
    progress.came("same", 5)
    progress.came("raw", 1)
    assert (progress.snapshot().done_bytes, progress.snapshot().hows) == (16, {"raw": 11, "same": 5})


def test_a_snapshot_does_not_change_any_more():
    progress = Progress()
    before = progress.snapshot()
    progress.came("raw", 10)
    assert (before.done_bytes, before.hows) == (0, {})


def test_threads_that_tell_at_once_lose_nothing():
    progress = Progress()

    def tell():
        for _ in range(1000):
            progress.add(sent_bytes=1)
            progress.came("raw", 1)

    threads = [threading.Thread(target=tell) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (progress.sent_bytes, progress.done_bytes, progress.hows) == (4000, 4000, {"raw": 4000})


def test_the_clock_stands_while_nothing_is_moved():
    progress = Progress()
    progress.begin()
    progress.pause()
    before, after = progress.snapshot(), progress.snapshot()
    assert before.active_s == after.active_s > 0
    # What people wait for goes on.
    assert before.elapsed_s < after.elapsed_s
    assert after.phase == "waiting"


def test_what_is_left_is_told_by_what_was_moved_and_not_by_what_was_there():
    assert seen(done_bytes=60, kept_bytes=40, active_s=2.0).left_s == 4.0
    assert seen(done_bytes=40, kept_bytes=40, active_s=2.0).left_s is None


def test_a_relay_that_has_not_begun_has_no_rate():
    assert seen().rate_bytes_per_s == 0.0
    assert seen(sent_bytes=10).leg_bytes_per_s("source") == 0.0


def test_the_leg_that_was_waited_for_is_the_slower_one():
    assert seen(active_s=10.0, source_wait_s=5.0, target_wait_s=1.0).slower_leg == "source"
    assert seen(active_s=10.0, source_wait_s=1.0, target_wait_s=5.0).slower_leg == "target"
    assert seen(active_s=10.0, source_wait_s=0.4, target_wait_s=0.4).slower_leg == ""


def test_waits_are_of_all_lanes_together():
    assert seen(active_s=10.0, source_wait_s=3.0, num_lanes=4).slower_leg == ""
    assert seen(active_s=10.0, sent_bytes=100, source_wait_s=20.0, num_lanes=4).leg_bytes_per_s("target") == 20.0
