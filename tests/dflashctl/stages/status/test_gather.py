import os

import pytest

from dflashctl.stages.status.gather import SILENT_AFTER_S, gather

NOW_S = 2_000_000.0


@pytest.fixture
def facts(workdir, transport):
    """All facts of a subject by name, its state too."""

    def of(sort, name, now_s=NOW_S):
        snapshot = gather(workdir, transport, now_s)
        (subject,) = [subject for subject in snapshot.of(sort) if subject.name == name]
        return {fact.name: fact for fact in (subject.state, *subject.facts)}

    return of


def own_process(ref, transport):
    token = transport.token_of(os.getpid(), str(ref.folder))
    ref.token_path.write_text(token.model_dump_json())


def test_every_fact_names_its_source(run, evaluated, benchmarked, workdir, transport):
    evaluated(run([3.0] * 50, checkpoint_steps=(50,)), 50)
    benchmarked()
    snapshot = gather(workdir, transport, NOW_S)
    everything = [fact for subject in snapshot.subjects for fact in (subject.state, *subject.facts)]
    assert len(everything) > 10
    assert all(fact.source for fact in everything)


def test_a_loss_that_rises_is_seen(run, facts):
    run([1.3] * 50 + [1.4] * 50)
    assert facts("run", "r")["loss"].warning.startswith("rising: 1.300 -> 1.400")


def test_a_loss_that_falls_is_no_warning(run, facts):
    run([2.0 - 0.01 * number for number in range(100)])
    assert facts("run", "r")["loss"].warning == ""


def test_a_run_that_went_silent_is_stale(run, facts, transport):
    own_process(run([2.0] * 5, at_s=NOW_S - SILENT_AFTER_S - 1, is_finished=False), transport)
    state = facts("run", "r")["state"]
    assert (state.value, state.kind) == ("running", "live")
    assert state.is_stale(NOW_S)


def test_a_finished_run_is_never_stale(run, facts):
    run([2.0] * 5, at_s=NOW_S - 1e6)
    assert not facts("run", "r")["state"].is_stale(NOW_S)


def test_a_claim_to_run_is_held_against_the_process(run, facts):
    run([2.0] * 5, is_finished=False)
    assert facts("run", "r")["state"].value == "ended without a word"


def test_time_left_is_an_estimate_and_says_by_what(run, facts, transport):
    own_process(run([2.0] * 5, is_finished=False), transport)
    left = facts("run", "r")["time left"]
    assert left.kind == "estimated"
    assert left.value == pytest.approx(10_000 - 5)
    assert "the last 5 steps" in left.text


def test_accuracy_is_never_called_acceptance(run, facts):
    run([2.0] * 5)
    assert "not an acceptance" in facts("run", "r")["accuracy"].text


def test_a_run_without_evaluation_says_how_to_know(run, facts):
    run([2.0] * 5)
    tau = facts("run", "r")["tau"]
    assert (tau.kind, tau.value) == ("unknown", None)
    assert tau.source == "dflashctl eval run --checkpoint r@latest"


def test_the_newest_measurement_counts_and_its_headline_is_without_repeats(run, evaluated, facts):
    ref = run([2.0] * 5, checkpoint_steps=(2, 5))
    evaluated(ref, 2, name="a", headline=1.1)
    evaluated(ref, 5, name="b", headline=1.9)
    tau = facts("run", "r")["tau"]
    assert (tau.value, tau.kind, tau.warning) == (1.9, "measured", "")


def test_a_measurement_of_an_older_checkpoint_says_so(run, evaluated, facts):
    evaluated(run([2.0] * 5, checkpoint_steps=(2, 5)), 2)
    assert facts("run", "r")["tau"].warning == "measured at step 2, and step 5 is there by now"


def test_an_evaluation_of_another_run_is_not_taken(run, evaluated, facts):
    evaluated(run([2.0] * 5, run_id="other", checkpoint_steps=(5,)), 5)
    run([2.0] * 5)
    assert facts("run", "r")["tau"].kind == "unknown"


def test_an_unfinished_evaluation_measured_nothing(run, evaluated, facts, workdir, transport):
    folder = evaluated(run([2.0] * 5, checkpoint_steps=(5,)), 5)
    (folder / "manifest.json").unlink()
    assert facts("run", "r")["tau"].kind == "unknown"
    assert gather(workdir, transport, NOW_S).problems == ()


def test_what_cannot_be_read_is_named_and_hides_nothing(run, evaluated, benchmarked, workdir, transport):
    folder = evaluated(run([2.0] * 5, checkpoint_steps=(5,)), 5)
    (folder / "report.json").write_text("{}")
    benchmarked().write_text("half a")
    run([2.0], run_id="broken").events_path.write_text("garbage\n")
    snapshot = gather(workdir, transport, NOW_S)
    assert [problem.name for problem in snapshot.problems] == ["evaluation e"]
    states = {subject.name: subject.state for subject in snapshot.subjects}
    assert states["broken"].value == "unreadable"
    assert "garbage" in states["broken"].warning
    assert states["s-1"].text == "unreadable"
    assert states["r"].value == "finished"


def test_a_benchmark_that_is_not_valid_taints_its_figures(benchmarked, facts):
    benchmarked(is_valid=False)
    found = facts("benchmark", "s-1")
    assert found["served tau"].warning == found["speed-up"].warning == "the benchmark is not valid"


def test_ages_count_from_when_it_was_measured(benchmarked, facts):
    benchmarked()
    assert facts("benchmark", "s-1")["served tau"].age_s(NOW_S) == 400.0


def test_an_empty_folder_has_nothing(workdir, transport):
    assert gather(workdir, transport, NOW_S).subjects == ()
