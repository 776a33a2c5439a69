import pytest

from dflashctl.errors import ArtifactError
from dflashctl.stages.status.measured import benchmarks_of, evaluations_of, read_benchmark, served_tau, tau_facts

NOW_S = 2_000_000.0


@pytest.fixture
def facts(workdir):
    def of(ref):
        evaluations, _ = evaluations_of(workdir)
        return {fact.name: fact for fact in tau_facts(ref, evaluations)}

    return of


@pytest.fixture
def served(workdir):
    return lambda ref: served_tau(ref, benchmarks_of(workdir)[0])


def test_a_run_without_evaluation_says_how_to_know(run, facts, workdir):
    tau = facts(run([2.0] * 5))["tau"]
    assert (tau.kind, tau.value) == ("unknown", None)
    assert tau.source == f"dflashctl eval run --checkpoint r@latest --workdir {workdir.path}"


def test_the_headline_is_without_repeats_and_what_explains_it_stands_beside(run, evaluated, facts):
    ref = run([2.0] * 5, checkpoint_steps=(5,))
    evaluated(ref, 5, headline=1.9)
    found = facts(ref)
    assert (found["tau"].value, found["tau"].kind, found["tau"].warning) == (1.9, "measured", "")
    assert found["tau"].text == "1.90 without repeats (3.00 with) at step 5, 24 prompts, 700 verify steps"
    assert found["tau of look-ups"].text == "1.40 in the own text, 1.70 by a table of the training text"
    assert found["repeated tokens"].text == "6.0 % in a repeated 16-gram"


def test_ages_count_from_when_it_was_measured(run, evaluated, facts):
    ref = run([2.0] * 5, checkpoint_steps=(5,))
    evaluated(ref, 5, at_s=NOW_S - 700)
    assert facts(ref)["tau"].age_s(NOW_S) == 700.0


def test_the_newest_checkpoint_counts_though_an_older_one_was_measured_later(run, evaluated, facts):
    ref = run([2.0] * 5, checkpoint_steps=(2, 5))
    evaluated(ref, 5, name="b", headline=1.9, at_s=NOW_S - 500)
    evaluated(ref, 2, name="a", headline=2.1, at_s=NOW_S - 100)
    found = facts(ref)
    assert (found["tau"].value, found["tau"].warning) == (1.9, "")
    assert (found["best tau"].value, found["best tau"].text) == (
        2.1,
        "2.10 at step 2, of 2 measured (2: 2.10, 5: 1.90)",
    )


def test_measurements_that_were_not_made_alike_are_compared_with_a_word(run, evaluated, facts):
    ref = run([2.0] * 5, checkpoint_steps=(2, 5))
    evaluated(ref, 2, name="a", num_prompts=3)
    evaluated(ref, 5, name="b")
    assert "not all were measured alike" in facts(ref)["best tau"].warning


def test_a_measurement_of_an_older_checkpoint_says_so(run, evaluated, facts):
    ref = run([2.0] * 5, checkpoint_steps=(2, 5))
    evaluated(ref, 2)
    assert facts(ref)["tau"].warning == "measured at step 2, and step 5 is there by now"


def test_answers_that_differ_from_plain_decoding_are_told(run, evaluated, facts):
    ref = run([2.0] * 5, checkpoint_steps=(5,))
    evaluated(ref, 5, num_greedy_equal=1)
    assert facts(ref)["tau"].warning == "1 of 2 checked answers differ from plain decoding"


def test_an_evaluation_of_another_run_is_not_taken(run, evaluated, facts):
    evaluated(run([2.0] * 5, run_id="r2", checkpoint_steps=(5,)), 5)
    assert facts(run([2.0] * 5))["tau"].kind == "unknown"


def test_an_unfinished_evaluation_measured_nothing(run, evaluated, facts):
    ref = run([2.0] * 5, checkpoint_steps=(5,))
    (evaluated(ref, 5) / "manifest.json").unlink()
    assert facts(ref)["tau"].kind == "unknown"


def test_what_was_served_is_told_apart_from_what_was_evaluated(run, benchmarked, served):
    benchmarked(name="s-0", ended_at_s=NOW_S - 900, tau=1.1)
    benchmarked(name="s-1")
    tau = served(run([2.0] * 5, checkpoint_steps=(400,)))
    assert (tau.name, tau.value, tau.kind, tau.warning) == ("served tau", 1.7, "measured", "")
    assert tau.text == "1.70 at step 400, reference as s, 20 prompts, 900 verify steps"


@pytest.mark.parametrize("changes", [{"drafter_label": "r2@400"}, {"drafter_label": None}, {"tau": None}])
def test_a_benchmark_of_something_else_is_not_taken(run, benchmarked, served, changes):
    benchmarked(**changes)
    tau = served(run([2.0] * 5))
    assert tau.kind == "unknown"
    assert tau.source.startswith("dflashctl bench --server NAME")


def test_doubts_about_what_was_served_are_told(run, benchmarked, served):
    benchmarked(is_valid=False)
    warning = served(run([2.0] * 5, checkpoint_steps=(500,))).warning
    assert warning == "the benchmark is not valid; measured at step 400, and step 500 is there by now"


def test_a_benchmark_is_read_past_what_is_the_bench_stage_s_own(benchmarked):
    assert read_benchmark(benchmarked(rows=[1, 2])).tau == 1.7


def test_a_benchmark_that_lacks_a_figure_is_named(benchmarked):
    with pytest.raises(ArtifactError, match="num_prompts"):
        read_benchmark(benchmarked(num_prompts="many"))
