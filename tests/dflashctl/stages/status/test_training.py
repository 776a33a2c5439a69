import json
import os

import pytest

from dflashctl.stages.status.training import SILENT_AFTER_S, run_subject
from dflashctl_remote.spec.events import CheckpointSaved, EventLog, Started
from dflashctl_remote.spec.manifest import write_json
from dflashctl_remote.spec.parity import Parity

NOW_S = 2_000_000.0


@pytest.fixture
def facts(transport):
    """All facts of a run by name, its state too."""

    def of(ref, evaluations=(), benchmarks=(), now_s=NOW_S):
        subject = run_subject(ref, evaluations, benchmarks, transport, now_s)
        return {fact.name: fact for fact in (subject.state, *subject.facts)}

    return of


@pytest.fixture
def living(run, transport):
    """A run whose process is this one."""

    def make(*arguments, **changes):
        ref = run(*arguments, is_finished=False, **changes)
        ref.token_path.write_text(transport.token_of(os.getpid(), str(ref.folder)).model_dump_json())
        return ref

    return make


def test_a_claim_to_run_is_held_against_the_process(run, facts):
    state = facts(run([2.0] * 5, is_finished=False))["state"]
    assert state.value == "ended without a word"
    assert "is gone and wrote no last event" in state.text


def test_a_running_run_is_seen_by_its_process(living, facts):
    state = facts(living([2.0] * 5))["state"]
    assert (state.value, state.kind) == ("running", "live")
    assert state.source.startswith(f"process {os.getpid()}, ")
    assert not state.is_stale(NOW_S)


def test_all_that_a_silent_run_said_is_stale(living, facts):
    found = facts(living([2.0] * 5, at_s=NOW_S - SILENT_AFTER_S - 1))
    for name in ("state", "step", "loss", "accuracy", "throughput", "time left"):
        assert found[name].is_stale(NOW_S), name


def test_a_run_of_slow_steps_may_be_silent_for_longer(living, facts, step):
    ref = living([])
    log = EventLog(ref.events_path)
    for number in range(1, 5):
        log.emit(step(number, at_s=NOW_S - 2000 + 300 * number))
    log.close()
    assert not facts(ref)["state"].is_stale(NOW_S)
    assert facts(ref)["state"].is_stale(NOW_S + 1000)


def test_a_process_that_never_spoke_is_stale_after_a_while(living, facts):
    ref = living([])
    ref.events_path.unlink()
    begun_s = ref.token_path.stat().st_mtime
    assert facts(ref, now_s=begun_s)["state"].value == "starting"
    assert facts(ref)["state"].is_stale(begun_s + SILENT_AFTER_S + 1)


def test_a_finished_run_is_never_stale(run, facts):
    found = facts(run([2.0] * 5, at_s=NOW_S - 1e6))
    assert not any(fact.is_stale(NOW_S) for fact in found.values())


def test_a_run_that_finished_short_of_its_steps_is_a_contradiction(run, facts):
    assert "its last step is 5 of 10,000" in facts(run([2.0] * 5))["state"].warning


def test_time_left_is_an_estimate_and_says_by_what(living, facts):
    left = facts(living([2.0] * 5))["time left"]
    assert left.kind == "estimated"
    assert left.value == pytest.approx(10_000 - 5)
    assert left.text == "about 2.8 h, at the 1 s a step of late"


def test_the_pause_before_a_resume_is_no_pace(living, facts, step):
    ref = living([2.0] * 5, at_s=NOW_S - 5000)
    log = EventLog(ref.events_path)
    log.emit(Started(at_s=NOW_S - 40, job="train", pid=os.getpid(), device="cpu"))
    for number in range(6, 10):
        log.emit(step(number, at_s=NOW_S - 40 + number, num_steps=10_000))
    log.close()
    assert facts(ref)["time left"].value == pytest.approx(10_000 - 9)


def test_accuracy_is_never_called_acceptance(run, facts):
    assert "teacher-forced: not an acceptance" in facts(run([2.0] * 5))["accuracy"].text


def test_throughput_is_told_with_r(run, facts):
    assert facts(run([2.0] * 5))["throughput"].text == "2,345 context tokens/s at r = 2.00"


def test_a_loss_that_rose_long_ago_is_seen_in_a_long_run(run, facts):
    loss = facts(run([1.3] * 2500 + [1.4] * 2500))["loss"]
    assert loss.value == pytest.approx(1.4)
    assert loss.warning.startswith("rising: 1.300 -> 1.400 since step")


def test_the_checkpoint_is_what_lies_on_the_disk(run, facts):
    found = facts(run([2.0] * 5, checkpoint_steps=(2, 5)))["checkpoint"]
    assert (found.value, found.text, found.warning) == (5, "step 5, 2 kept", "")
    assert found.age_s(NOW_S) == 60.0


@pytest.mark.parametrize("on_disk", [(), (2,)])
def test_a_checkpoint_that_the_run_told_of_and_that_is_gone_is_a_contradiction(run, facts, on_disk):
    ref = run([2.0] * 5, checkpoint_steps=on_disk)
    log = EventLog(ref.events_path)
    log.emit(CheckpointSaved(step=5, path="p", size_bytes=1, seconds_s=0.1))
    log.close()
    assert "says that it saved step 5, and no complete one is there" in facts(ref)["checkpoint"].warning


def test_a_stop_that_was_asked_for_is_told_until_it_came(living, facts):
    ref = living([2.0] * 5)
    write_json(ref.stop_path, {"who": "ann", "when_s": NOW_S - 30})
    stop = facts(ref)["stop"]
    assert (stop.text, stop.age_s(NOW_S)) == ("asked for by ann, not there yet", 30.0)
    ref.stop_path.write_text(json.dumps({"who": "ann"}))
    assert facts(ref)["stop"].warning


def test_what_it_trains_on_comes_from_its_record(run, facts):
    ref = run([2.0] * 5)
    assert facts(ref)["recipe"].text == "target demo, dataset data, bundle 000000000000"
    ref.record_path.write_text("{}")
    found = facts(ref)
    assert "cannot be read" in found["recipe"].text
    assert found["state"].value == "finished"


def test_stages_side_by_side_tell_which_one_sets_the_pace(living, facts, step, in_line):
    ref = living([])
    assert "stages" not in facts(ref)
    log = EventLog(ref.events_path)
    log.emit(step(1, at_s=NOW_S - 5, **in_line))
    log.close()
    found = facts(ref)["stages"]
    assert found.text == (
        "target sets the pace, busy 97 % of the time (loader 2 %, drafter 60 %); "
        "waiting: rows 4 of 4, hidden states 0 of 2"
    )
    assert (found.kind, found.value) == ("reported", 0.97)


def test_stages_in_turns_have_no_pace_to_set(run, facts):
    found = facts(run([2.0] * 5))
    assert "stages" not in found
    assert found["peak memory"].text == "3.0 GiB"


def test_tau_of_the_newest_validation_is_measured_and_says_on_what(run, facts, validated):
    ref = run([2.0] * 5)
    assert "validated tau" not in facts(ref)
    log = EventLog(ref.events_path)
    log.emit(validated(2, tau=1.5))
    log.emit(validated(4, at_s=NOW_S - 30))
    log.close()
    tau = facts(ref)["validated tau"]
    assert tau.text == "3.21 [2.95, 3.50] at step 4, 16 held-out prompts, 600 verify steps"
    assert (tau.kind, tau.value, tau.age_s(NOW_S), tau.warning) == ("measured", 3.21, 30.0, "")


def test_a_tau_whose_parity_gate_did_not_pass_says_so(run, facts, validated):
    ref = run([2.0] * 5)
    log = EventLog(ref.events_path)
    log.emit(validated(4, parity=Parity(verdict="differ", cause="mask", says="a block sees its anchor")))
    log.close()
    assert facts(ref)["validated tau"].warning == "parity gate: differ (a block sees its anchor)"
