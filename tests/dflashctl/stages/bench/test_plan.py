from pathlib import Path

import pytest

from dflashctl.config.bench import BenchSpec
from dflashctl.errors import ConfigError
from dflashctl.stages.bench.account import Extras, SegmentRecord
from dflashctl.stages.bench.plan import (
    check_same,
    check_spec,
    finished_keys,
    label_of_plain,
    new_folder,
    plan_bench,
    request_body,
)
from dflashctl.stages.bench.prompts import read_prompts

ALL = Extras(token_ids=True, continuous_usage=True)
NONE = Extras(token_ids=False, continuous_usage=False)


def spec_of(**changes):
    return BenchSpec(**{"server": "spec", "prompts": "-", **changes})


@pytest.fixture
def planned(label, prompts_file, tmp_path):
    def make(finished=frozenset(), num_prompts=10, server=None, baseline=None, **changes):
        prompts = read_prompts(prompts_file("x" * num_prompts))
        servers = (server or label("spec", 7), baseline or label("base"))
        return plan_bench(spec_of(**changes), *servers, prompts, tmp_path, finished=finished)

    return make


def order_of(plan):
    return [(turn.arm[0], turn.block) for turn in plan.turns]


def test_arms_take_turns_prompt_by_prompt(planned):
    assert order_of(planned(num_prompts=3)) == [("b", 0), ("s", 0), ("s", 1), ("b", 1), ("b", 2), ("s", 2)]


def test_the_next_repeat_begins_with_the_other_arm(planned):
    assert order_of(planned(num_prompts=1, num_repeats=2)) == [("b", 0), ("s", 0), ("s", 0), ("b", 0)]


def test_above_one_at_a_time_a_turn_holds_enough_to_keep_all_places_busy(planned):
    sizes = [len(turn.prompts) for turn in planned(num_prompts=10, concurrency=[2]).turns]
    assert sizes == [8, 8, 2, 2]


def test_each_arm_is_asked_each_prompt_once_a_load_and_repeat(planned):
    plan = planned(num_prompts=5, concurrency=[1, 2], num_repeats=3)
    keys = [(t.arm, t.load.label, t.repeat, p.id) for t in plan.turns for p in t.prompts]
    assert len(keys) == len(set(keys)) == plan.num_requests == 5 * 2 * 2 * 3


def test_in_an_open_loop_both_arms_see_the_same_seeded_arrivals(planned):
    first, second = planned(rate_per_s=5.0).turns
    assert first.arrivals_s == second.arrivals_s
    assert first.arrivals_s == planned(rate_per_s=5.0).turns[0].arrivals_s
    assert first.arrivals_s != planned(rate_per_s=5.0, seed=1).turns[0].arrivals_s
    assert list(first.arrivals_s) == sorted(first.arrivals_s)


def test_arrivals_come_at_the_rate(planned):
    arrivals = planned(rate_per_s=5.0, num_prompts=400).turns[0].arrivals_s
    assert arrivals[-1] == pytest.approx(80, rel=0.15)


def test_what_was_answered_is_left_out_and_what_failed_is_not(planned, request_record):
    done = request_record(arm="baseline", prompt_id="p0")
    failed = request_record(arm="speculative", prompt_id="p0", error="HTTP 500")
    plan = planned(finished=finished_keys([done, failed]), num_prompts=2)
    asked = {(turn.arm, prompt.id) for turn in plan.turns for prompt in turn.prompts}
    assert asked == {("speculative", "p0"), ("speculative", "p1"), ("baseline", "p1")}
    assert plan.num_skipped == 1


def test_a_request_that_was_answered_at_last_is_done(request_record):
    assert finished_keys([request_record(error="broken"), request_record()])


def test_sampling_is_always_said(planned):
    plan = planned(top_k=20, chat_template_kwargs={"enable_thinking": False}, max_new_tokens=5)
    body = request_body(plan.spec, "m", plan.prompts.prompts[0], ALL)
    assert (body["temperature"], body["top_p"], body["top_k"], body["seed"], body["max_tokens"]) == (0.0, 1.0, 20, 0, 5)
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert body["return_token_ids"] and body["stream_options"]["continuous_usage_stats"]


def test_a_server_is_asked_only_for_additions_that_it_takes(planned):
    plan = planned()
    body = request_body(plan.spec, "m", plan.prompts.prompts[0], NONE)
    assert "return_token_ids" not in body
    assert body["stream_options"] == {"include_usage": True}


def test_a_baseline_with_a_drafter_is_refused(planned, label):
    with pytest.raises(ConfigError, match=r"--baseline base has a drafter \(mine@900\)"):
        planned(baseline=label("base", 7))


def test_a_server_without_a_drafter_is_refused(planned, label):
    with pytest.raises(ConfigError, match="server spec decodes plainly"):
        planned(server=label("spec"))


def test_servers_of_two_targets_are_refused(planned, label):
    with pytest.raises(ConfigError, match="two targets"):
        planned(baseline=label("base", target="/targets/other"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"concurrency": [1, 0]}, "expected numbers of requests at a time, found 0"),
        ({"concurrency": []}, "there is nothing to ask"),
        ({"concurrency": [2, 2]}, "a number is there twice"),
        ({"baseline": "spec"}, "--baseline is spec itself"),
    ],
)
def test_what_no_server_can_be_asked_is_refused(changes, said):
    with pytest.raises(ConfigError, match=said):
        check_spec(spec_of(**changes))


def test_a_baseline_yet_to_be_started_has_the_target_and_no_drafter(label):
    plain = label_of_plain(label("spec", 7), "spec-baseline")
    assert (plain.target, plain.drafter_label, plain.num_draft_tokens) == ("/targets/demo", None, None)
    assert plain.is_temporary


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"temperature": 0.5}, "bench.temperature = 0.0, and now it is 0.5"), ({"num_repeats": 2}, "bench.num_repeats")],
)
def test_going_on_with_other_settings_is_refused(planned, label, changes, said):
    before = segment_of(planned(), label)
    with pytest.raises(ConfigError, match=said):
        check_same(planned(**changes), before)


def test_going_on_with_another_drafter_is_refused(planned, label):
    before = segment_of(planned(), label)
    with pytest.raises(ConfigError, match="drafter_sha256 of the speculative arm"):
        check_same(planned(server=label("spec", 7, drafter_sha256="e" * 64)), before)


def test_going_on_with_servers_that_were_started_anew_is_fine(planned, label):
    before = segment_of(planned(), label)
    check_same(planned(server=label("spec", 7, base_url="http://127.0.0.1:2")), before)


def test_a_folder_is_never_used_twice(tmp_path):
    first = new_folder(tmp_path, "spec", "20260101-000000")
    first.mkdir()
    assert new_folder(tmp_path, "spec", "20260101-000000") == Path(f"{first}-2")


def segment_of(plan, label):
    return SegmentRecord(
        segment=0,
        began_at_s=0.0,
        machine="m",
        dflashctl="0",
        asked=plan.asked,
        servers=plan.servers,
        extras={"baseline": ALL, "speculative": ALL},
    )
