import threading

import pytest

from dflashctl.errors import EngineUnhealthy
from dflashctl.stages.bench import figures
from dflashctl.stages.bench.account import RequestRecord, SegmentRecord, TurnRecord, read_journal
from dflashctl.stages.bench.apply import MOST_ERRORS_IN_A_ROW
from dflashctl.stages.bench.plan import finished_keys

PROBE = 1
"""Requests to each server before the first that counts."""


def of_kind(bench, kind):
    return [line for line in read_journal(bench.folder) if isinstance(line, kind)]


def test_a_benchmark_from_end_to_end(bench):
    report = bench.report()
    assert report.is_valid
    assert report.tau == pytest.approx(3.0)
    assert report.num_verify_steps == 3 * 3
    assert report.is_lossless
    assert report.speedup is not None
    assert len(report.rows) == 2
    assert report.servers["speculative"].about["engine"] == "stand-in"


def test_every_request_is_written_down_with_its_moments(bench):
    bench.run()
    requests = of_kind(bench, RequestRecord)
    assert len(requests) == 6
    for request in requests:
        moments = (request.intended_s, request.sent_s, *request.chunk_times_s, request.ended_s)
        assert list(moments) == sorted(moments)
        assert (request.first_s, request.last_s) == (request.chunk_times_s[0], request.chunk_times_s[-1])
        assert sum(request.chunk_sizes_tokens) == request.num_output_tokens == 10


def test_counters_are_read_around_every_turn(bench):
    bench.run()
    turns = [turn for turn in of_kind(bench, TurnRecord) if turn.arm == "speculative"]
    assert [turn.after.num_drafts - turn.before.num_drafts for turn in turns] == [3, 3, 3]
    assert all(turn.before is None for turn in of_kind(bench, TurnRecord) if turn.arm == "baseline")


def test_warm_up_is_asked_of_both_arms_and_counted_nowhere(bench):
    report = bench.report(num_warmup=2)
    assert len(bench.base.bodies) == len(bench.spec.bodies) == PROBE + 2 + 3
    assert sum(row.num_requests for row in report.rows) == 6
    assert report.num_verify_steps == 9


@pytest.mark.parametrize("concurrency", [2, 3])
def test_a_closed_loop_keeps_so_many_requests_in_the_air(bench, concurrency):
    lock, here, most = threading.Lock(), [0], [0]
    barrier = threading.Barrier(concurrency, timeout=10)

    def before(number):
        if number < PROBE:
            return
        with lock:
            here[0] += 1
            most[0] = max(most[0], here[0])
        # All places are taken before any is given back, for as long as enough are left to come.
        if number - PROBE < 3 // concurrency * concurrency:
            barrier.wait()
        with lock:
            here[0] -= 1

    bench.spec.before = before
    report = bench.report(concurrency=[concurrency])
    assert most[0] == concurrency
    assert {row.load for row in report.rows} == {f"c={concurrency}"}


def test_waiting_for_a_busy_server_counts_in_an_open_loop(bench):
    everyone_came = threading.Event()

    def before(number):
        if number == PROBE + 2:
            everyone_came.set()
        if number >= PROBE:
            assert everyone_came.wait(10)

    bench.spec.before = before
    report = bench.report(rate_per_s=1000.0)
    requests = [request for request in of_kind(bench, RequestRecord) if request.arm == "speculative"]
    last_arrival_s = max(request.intended_s for request in requests)
    waits = sorted(figures.ttft_s(request, is_open_loop=True) for request in requests)
    # Nobody was answered before the last one came, so that everybody waited for it.
    assert all(request.first_s > last_arrival_s for request in requests)
    assert waits == sorted(request.first_s - request.intended_s for request in requests)
    row = next(row for row in report.rows if row.arm == "speculative")
    assert row.ttft_s.p50 == pytest.approx(waits[1])
    assert row.queue_s is not None
    assert row.throughput_ratio is None and "the arrivals set the throughput" in report.verdict


def test_a_server_that_takes_no_additions_is_measured_without_them(bench):
    for server in (bench.base, bench.spec):
        server.refuses = ("return_token_ids", "continuous_usage_stats")
    report = bench.report()
    assert not report.extras["speculative"].token_ids
    assert not report.extras["speculative"].continuous_usage
    assert report.equality.by == "text"
    assert report.is_lossless
    assert sum("refuses an addition" in getattr(event, "message", "") for event in bench.said) == 4


def test_additions_that_are_taken_and_not_done_count_as_missing(bench):
    bench.spec.has_token_ids = bench.spec.has_continuous_usage = False
    extras = bench.report().extras
    assert not extras["speculative"].token_ids and not extras["speculative"].continuous_usage
    assert extras["baseline"].token_ids


def test_a_server_that_answers_500_is_told_before_anything_is_written(bench):
    bench.spec.fails_at = lambda number: 500
    with pytest.raises(EngineUnhealthy, match=r"server spec .* gave none: HTTP 500: it broke"):
        bench.run()
    assert not (bench.folder / "requests.jsonl").exists()


def test_a_warm_up_that_fails_ends_it(bench):
    bench.base.fails_at = lambda number: 503 if number == PROBE else None
    end = bench.run(num_warmup=1)
    assert end.reason == "a warm-up request to server base failed: HTTP 503: it broke"


def test_one_failed_request_is_recorded_and_the_run_goes_on(bench):
    bench.spec.fails_at = lambda number: 500 if number == PROBE else None
    report = bench.report()
    assert report.ended_because is None
    assert not report.is_valid
    assert "1 of 6 requests failed" in report.invalid_because[0]
    assert sum(row.num_requests for row in report.rows) == 5


def test_an_arm_that_only_fails_is_given_up(bench):
    bench.spec.fails_at = lambda number: 500 if number >= PROBE else None
    end = bench.run(num_repeats=4)
    assert end.reason == f"server spec failed {MOST_ERRORS_IN_A_ROW} requests in a row, at last: HTTP 500: it broke"


def test_a_server_killed_in_mid_answer_ends_the_run_with_a_sentence(bench):
    bench.spec.fails_at = lambda number: "die" if number == PROBE + 1 else None
    report = bench.report()
    assert report.ended_because.startswith("server spec does not answer any more; its last answer: ")
    failed = [request for request in of_kind(bench, RequestRecord) if request.error]
    assert len(failed) == 1 and len(failed[0].chunk_times_s) == 2
    assert sum(row.num_requests for row in report.rows) == len(of_kind(bench, RequestRecord)) - 1 > 0
    assert not report.is_valid


def test_going_on_asks_only_what_is_left(bench):
    bench.spec.fails_at = lambda number: 500 if number == PROBE else None
    bench.run()
    bench.spec.fails_at = lambda number: None
    lines = read_journal(bench.folder)
    finished = finished_keys(line for line in lines if isinstance(line, RequestRecord))
    num_before = len(bench.base.bodies)
    report = bench.report(segment=1, finished=finished)
    assert len(bench.base.bodies) == num_before + PROBE
    assert len(of_kind(bench, SegmentRecord)) == 2
    assert report.is_valid
    assert sum(row.num_requests for row in report.rows) == 6
    assert report.num_verify_steps == 9


def test_a_drafter_that_nothing_is_accepted_of_proves_nothing(bench):
    bench.spec.num_accepted = 0
    report = bench.report()
    assert "tau is exactly 1" in report.invalid_because[0]


def test_without_counters_tau_is_unknown_and_the_benchmark_invalid(bench):
    bench.spec.has_metrics = False
    report = bench.report()
    assert report.tau is None
    assert "counted no verify step" in report.invalid_because[0]


def test_outputs_that_differ_in_float32_make_it_invalid(bench):
    bench.spec.first_token = 1
    report = bench.report()
    assert report.is_lossless is False
    assert {difference.index for difference in report.equality.differences} == {0}
    assert not report.is_valid


def test_progress_is_told_to_its_end(bench):
    bench.run()
    assert (bench.said[-1].what, bench.said[-1].done, bench.said[-1].total) == ("c=1", 6, 6)


def test_a_second_repeat_tells_whether_the_baseline_repeats_itself(bench):
    report = bench.report(num_repeats=2)
    assert (report.equality.num_baseline_compared, report.equality.num_baseline_equal) == (3, 3)
