import math
from pathlib import Path

import pytest

from dflashctl.errors import ArtifactError
from dflashctl.records import BenchRecord
from dflashctl.stages.bench.account import EndRecord, RequestRecord, TurnRecord
from dflashctl.stages.bench.summary import read_report, summarise


@pytest.fixture
def report(benchmark_lines):
    def make(*arguments, categories=None, **changes):
        return summarise(benchmark_lines(*arguments, **changes), Path("/b"), categories or {})

    return make


def row_of(report, arm):
    return next(row for row in report.rows if row.arm == arm)


def check_of(report, name):
    return next(check for check in report.checks if check.name == name)


def test_the_speed_up_is_the_geometric_mean_of_paired_ratios(report):
    # 8 s plainly for 8 tokens, against 4, 8 and 16 s: ratios 2, 1 and 0.5.
    result = report()
    assert [prompt.speedup for prompt in result.prompts] == pytest.approx([2.0, 1.0, 0.5])
    assert result.speedup == pytest.approx(1.0)


def test_tau_and_acceptance_are_those_of_the_differenced_counters(report):
    result = report()
    assert result.num_verify_steps == 12
    assert result.tau == pytest.approx(2.0)
    assert result.acceptance_rate == pytest.approx(12 / 84)
    assert row_of(result, "baseline").tau is None


def test_output_tokens_a_second_are_over_the_turns_of_the_arm(report):
    result = report()
    assert row_of(result, "baseline").output_tokens_per_s == pytest.approx(27 / 27)
    assert row_of(result, "speculative").output_tokens_per_s == pytest.approx(27 / 31)
    assert row_of(result, "speculative").throughput_ratio == pytest.approx(27 / 31)


def test_tokens_a_second_of_one_user_are_one_over_the_median_tpot(report):
    assert row_of(report(), "speculative").tokens_per_s_per_user == pytest.approx(1.0)


def test_chunk_gap_and_tpot_stay_apart(report):
    row = row_of(report((8.0, 8.0, 8.0)), "speculative")
    assert row.chunk_gap_s.p50 == pytest.approx(2.0)
    assert row.tpot_s.p50 == pytest.approx(1.0)


def test_break_even_is_what_a_step_costs(report):
    # 28 s of decode in 12 steps, against 24 s for 24 tokens.
    result = report()
    assert result.step_cost.plain_steps_per_verify_step == pytest.approx(28 / 12)
    assert "break-even is at tau 2.33; measured tau is 2.00" in result.verdict


def test_a_slower_speculation_is_called_so_with_its_reason(report):
    result = report((16.0, 16.0, 16.0, 17.0, 17.0))
    assert result.verdict.startswith("Speculation is SLOWER than plain decoding: 0.49 times the rate")
    assert "costs 4.10 plain decode steps here" in result.verdict
    assert "bound by arithmetic on this CPU" in result.verdict


def test_a_faster_one_is_called_so_and_gives_no_excuse(report):
    result = report((4.0, 4.1, 4.2, 4.0, 4.0))
    assert result.verdict.startswith("Speculation is faster than plain decoding: 1.97 times the rate")
    assert "arithmetic" not in result.verdict


def test_what_an_interval_across_one_cannot_tell_is_not_told(report):
    result = report((4.0, 6.0, 8.0, 10.0, 16.0, 8.0))
    assert result.speedup_ci.low < 1 < result.speedup_ci.high
    assert result.verdict.startswith("No difference from plain decoding can be told: 1.01 times")


def test_few_prompts_have_a_speed_up_and_no_interval(report):
    result = report((4.0, 4.0))
    assert result.speedup == pytest.approx(2.0)
    assert result.speedup_ci is None
    assert "too few prompts to say how sure" in result.verdict


def test_without_one_at_a_time_there_is_no_paired_speed_up_and_it_says_why(benchmark_lines):
    lines = [
        line.model_copy(update={"load": "c=2"}) if isinstance(line, RequestRecord | TurnRecord) else line
        for line in benchmark_lines(asked={"concurrency": (2,)})
    ]
    result = summarise(lines, Path("/b"), {})
    assert result.speedup is None
    assert "c=1 was not asked for" in result.verdict
    assert "Output tokens a second are 0.87 times (c=2) the baseline's." in result.verdict


def test_it_is_what_other_stages_read(report):
    assert isinstance(report(), BenchRecord)
    assert report().is_valid
    assert (report().started_at_s, report().num_prompts) == (1_000_000.0, 3)


def test_categories_have_their_own_speed_up_and_tau(report):
    result = report(categories={"p0": "code", "p1": "code", "p2": "prose"})
    code, prose = result.categories
    assert (code.category, code.num_prompts) == ("code", 2)
    assert code.speedup == pytest.approx(math.sqrt(2))
    assert prose.speedup == pytest.approx(0.5)
    assert prose.tau == pytest.approx(2.0)


def test_equal_outputs_are_lossless(report):
    result = report()
    assert result.is_lossless is True
    assert (result.equality.num_equal, result.equality.by) == (3, "token ids")


def test_an_output_that_differs_is_found_at_its_first_token(report):
    result = report(ids=(0, 1, 2, 9, 4, 5, 6, 7, 8))
    assert result.is_lossless is False
    assert {difference.index for difference in result.equality.differences} == {3}
    assert any("greedy outputs differ from the baseline's in float32" in reason for reason in result.invalid_because)


def test_in_bfloat16_a_difference_is_shown_and_fails_nothing(report):
    result = report(ids=(9, 1, 2, 3, 4, 5, 6, 7, 8), about={"dtype": "bfloat16"})
    assert result.is_lossless is False
    assert result.is_valid
    assert "rounding alone can part near-ties" in result.equality_note


def test_where_the_server_does_not_say_its_dtype_a_difference_fails_nothing(report):
    result = report(ids=(9, 1, 2, 3, 4, 5, 6, 7, 8), about={})
    assert result.is_valid
    assert "a dtype that the server does not say" in result.equality_note


def test_sampled_outputs_are_not_compared(report):
    result = report(ids=(9, 1, 2, 3, 4, 5, 6, 7, 8), asked={"temperature": 0.7})
    assert result.is_lossless is None
    assert result.is_valid
    assert result.equality_note.startswith("not compared")


def test_without_token_ids_texts_are_compared(benchmark_lines):
    lines = [
        line.model_copy(update={"token_ids": None, "text": f"text of {line.arm}"})
        if isinstance(line, RequestRecord)
        else line
        for line in benchmark_lines()
    ]
    result = summarise(lines, Path("/b"), {})
    assert result.equality.by == "text"
    assert {difference.index for difference in result.equality.differences} == {8}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"spec_steps": 0}, "counted no verify step"),
        ({"accepted": 0}, "none of 84 drafts was accepted: tau is exactly 1"),
        ({"base_steps": 2}, "the baseline made 6 verify steps"),
    ],
)
def test_what_proves_nothing_is_invalid_with_its_reason(report, changes, said):
    result = report(**changes)
    assert not result.is_valid
    assert any(said in reason for reason in result.invalid_because)


@pytest.mark.parametrize(
    ("last_words", "said"),
    [((), "it was killed"), ((EndRecord(segment=0, ended_s=9.0, reason="it was interrupted"),), "it was interrupted")],
)
def test_a_benchmark_that_ended_early_is_invalid(benchmark_lines, last_words, said):
    whole = benchmark_lines(ended=False)
    cut = [line for line in whole if getattr(line, "turn", 0) < 3]
    reasons = summarise([*cut, *last_words], Path("/b"), {}).invalid_because
    assert reasons[0] == f"it ended before everything was asked: {said}"
    assert summarise([*whole, *last_words], Path("/b"), {}).is_valid, "nothing was left to ask"


def test_a_failed_request_makes_it_invalid_and_the_others_count(benchmark_lines):
    lines = benchmark_lines()
    place = next(index for index, line in enumerate(lines) if isinstance(line, RequestRecord))
    lines[place] = lines[place].model_copy(update={"error": "HTTP 500: it broke"})
    result = summarise(lines, Path("/b"), {})
    assert "1 of 6 requests failed; the first, p0 of the baseline arm: HTTP 500" in result.invalid_because[0]
    assert row_of(result, "baseline").num_errors == 1
    assert row_of(result, "baseline").num_requests == 2


def test_a_request_that_was_asked_again_counts_once(benchmark_lines):
    lines = benchmark_lines()
    place = next(index for index, line in enumerate(lines) if isinstance(line, RequestRecord))
    lines.insert(place, lines[place].model_copy(update={"error": "HTTP 500", "turn": 99}))
    result = summarise(lines, Path("/b"), {})
    assert result.is_valid
    assert row_of(result, "baseline").num_requests == 3


def test_counters_that_fell_mean_a_server_that_was_started_anew(benchmark_lines, counted):
    lines = benchmark_lines()
    last = max(index for index, line in enumerate(lines) if isinstance(line, TurnRecord) and line.arm == "speculative")
    lines[last] = lines[last].model_copy(update={"before": counted(0, 0), "after": counted(4, 4)})
    result = summarise(lines, Path("/b"), {})
    assert any("counters of the speculative arm fell" in reason for reason in result.invalid_because)


def test_counters_of_two_starts_are_pooled_part_by_part(benchmark_lines):
    first, second = (benchmark_lines((4.0,), asked={"num_prompts": 2}) for _ in range(2))
    interrupted = EndRecord(segment=0, ended_s=9.0, reason="it was interrupted")
    later = [
        line.model_copy(update={"segment": 1, **({"prompt_id": "p9"} if isinstance(line, RequestRecord) else {})})
        for line in second
    ]
    result = summarise([*first[:-1], interrupted, *later], Path("/b"), {})
    assert result.num_segments == 2
    assert result.num_verify_steps == 8
    assert result.is_valid


def test_tokens_that_do_not_add_up_are_warned_of(benchmark_lines):
    assert check_of(summarise(benchmark_lines(), Path("/b"), {}), "tokens add up").verdict == "ok"
    lines = [
        line.model_copy(update={"num_output_tokens": 90}) if isinstance(line, RequestRecord) else line
        for line in benchmark_lines()
    ]
    assert check_of(summarise(lines, Path("/b"), {}), "tokens add up").verdict == "warning"


def test_a_tau_above_what_the_block_can_give_is_warned_of(report):
    assert check_of(report(), "tau is at most K + 1").verdict == "ok"
    assert check_of(report(accepted=36), "tau is at most K + 1").verdict == "warning"


def test_a_gap_that_is_not_a_steps_time_is_warned_of(report):
    # Chunks of two tokens, and counters that say four a step.
    assert check_of(report(), "chunk gap = TPOT x tau").verdict == "ok"
    check = check_of(report(accepted=12), "chunk gap = TPOT x tau")
    assert check.verdict == "warning" and "split into several chunks" in check.text


def test_cached_prompts_are_warned_of_and_silence_is_not_taken_for_none(benchmark_lines):
    name = "no prompt came out of a cache"
    assert check_of(summarise(benchmark_lines(), Path("/b"), {}), name).verdict == "not measured"
    for cached, verdict in ((0, "ok"), (5, "warning")):
        lines = [
            line.model_copy(update={"num_cached_tokens": cached}) if isinstance(line, RequestRecord) else line
            for line in benchmark_lines()
        ]
        assert check_of(summarise(lines, Path("/b"), {}), name).verdict == verdict


def test_steps_between_our_turns_are_somebody_elses(benchmark_lines, counted):
    name = "nobody else used the servers"
    assert check_of(summarise(benchmark_lines(), Path("/b"), {}), name).verdict == "ok"
    lines = [
        line.model_copy(update={"before": counted(12, 12), "after": counted(16, 16)})
        if isinstance(line, TurnRecord) and line.arm == "speculative" and line.block == 2
        else line
        for line in benchmark_lines()
    ]
    check = check_of(summarise(lines, Path("/b"), {}), name)
    assert check.verdict == "warning" and check.text.startswith("4 verify steps")


def test_unknown_chunk_sizes_are_said(benchmark_lines):
    lines = [
        line.model_copy(update={"chunk_sizes_tokens": None}) if isinstance(line, RequestRecord) else line
        for line in benchmark_lines()
    ]
    result = summarise(lines, Path("/b"), {})
    assert check_of(result, "size of each chunk is known").verdict == "warning"
    assert result.repetition.tau_without_repeats is None


def test_arms_on_different_machines_are_warned_of(benchmark_lines):
    lines = benchmark_lines()
    servers = dict(lines[0].servers)
    servers["baseline"] = servers["baseline"].model_copy(update={"about": {"dtype": "float32", "device": "cuda"}})
    lines[0] = lines[0].model_copy(update={"servers": servers})
    check = check_of(summarise(lines, Path("/b"), {}), "both arms run the same engine")
    assert check.verdict == "warning" and "device: cuda and cpu" in check.text


def test_tau_without_repeats_is_of_the_steps_that_gave_none(benchmark_lines):
    # Nothing repeats: four steps of two tokens an answer.
    result = summarise(benchmark_lines(), Path("/b"), {})
    assert result.repetition.repeated_token_share == 0.0
    assert result.repetition.tau_without_repeats == pytest.approx(2.0)


def test_a_loop_is_seen_in_the_share_of_repeated_tokens(benchmark_lines):
    lines = [
        line.model_copy(update={"token_ids": tuple([5] * 40)}) if isinstance(line, RequestRecord) else line
        for line in benchmark_lines()
    ]
    assert summarise(lines, Path("/b"), {}).repetition.repeated_token_share == 1.0


def test_acceptance_by_position_is_there_where_the_engine_counts_it(benchmark_lines, counted):
    assert summarise(benchmark_lines(), Path("/b"), {}).positions == ()
    lines = benchmark_lines((4.0,))
    lines = [
        line.model_copy(
            update={"before": counted(0, 0, per_position=(0, 0)), "after": counted(4, 4, per_position=(3, 1))}
        )
        if isinstance(line, TurnRecord) and line.arm == "speculative"
        else line
        for line in lines
    ]
    first, second = summarise(lines, Path("/b"), {}).positions
    assert (first.position, first.unconditional, first.conditional) == (1, 0.75, 0.75)
    assert (second.unconditional, second.conditional) == (0.25, pytest.approx(1 / 3))


def test_a_report_reads_back_and_anything_else_is_a_sentence(report, tmp_path):
    (tmp_path / "run.json").write_text(report().model_dump_json())
    assert read_report(tmp_path) == read_report(tmp_path / "run.json") == report()
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ArtifactError, match="is not a benchmark's report of this version"):
        read_report(tmp_path)
    with pytest.raises(ArtifactError, match="no benchmark at"):
        read_report(tmp_path / "nowhere")
