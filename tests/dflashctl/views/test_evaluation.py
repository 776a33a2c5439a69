from dflashctl.stages.evaluate.plan import compare
from dflashctl.views.evaluation import acceptance, acceptance_by_slot, comparison
from dflashctl_remote.spec.evaluate import Tau
from dflashctl_remote.spec.parity import Parity


def test_table_has_before_after_and_the_look_ups(text_of, eval_report):
    rows = (("drafter before", eval_report(tau=1.1, headline=1.05)), ("drafter after", eval_report()))
    text = text_of(acceptance(rows))
    lines = {line.strip()[:14]: line.split() for line in text.splitlines()}
    assert lines["drafter before"][-4:] == ["1.10", "1.05", "700", "2,000"]
    assert lines["drafter after "][-4:] == ["3.00", "2.50", "700", "2,000"]
    assert lines["look-up: last "][-4:] == ["1.40", "-", "1,400", "2,000"]
    assert lines["look-up: bigra"][-4:] == ["1.70", "-", "1,170", "2,000"]


def test_table_says_that_it_was_measured_and_how(text_of, eval_report):
    text = text_of(acceptance((("drafter", eval_report()),)))
    assert text.startswith("measured, free-running greedy decode of 24 prompts")
    assert "6.0 % of the tokens lie in a repeated 16-gram" in text
    assert "81.0 % of the 4-grams differ" in text
    assert "estimate" not in text


def test_output_that_left_greedy_stands_out(text_of, eval_report):
    assert "2 of 2 answers" in text_of(acceptance((("drafter", eval_report()),)))
    assert "NOT all" in text_of(acceptance((("drafter", eval_report(num_greedy_equal=1)),)))


def test_report_without_a_bigram_table_has_no_row_for_it(text_of, eval_report):
    assert "bigrams of the training text" not in text_of(acceptance((("drafter", eval_report(bigram_table=None)),)))


def test_comparison_shows_change_and_caveats(text_of, eval_report):
    text = text_of(comparison(compare(eval_report(headline=2.0), eval_report(headline=2.5, num_prompts=3))))
    assert "+25.0%" in text
    assert "not the same measurement: num_prompts differs: 24 and 3" in text


def test_every_slot_has_its_share(text_of, eval_report):
    assert "70 %" in text_of(acceptance_by_slot(eval_report()))


def test_tau_of_nothing_is_not_a_figure(text_of, eval_report):
    nothing = Tau(tau=0.0, num_tokens=0, num_verify_steps=0)
    assert "none left" in text_of(acceptance((("drafter", eval_report(drafter_without_repeats=nothing)),)))


def test_drafter_that_a_table_beats_is_told_so(text_of, eval_report):
    remark = "a table of the training text's bigrams still drafts better"
    assert remark in text_of(acceptance((("drafter", eval_report(tau=1.5)),)))
    assert remark not in text_of(acceptance((("drafter", eval_report()),)))


def test_the_taps_are_counted_and_named(text_of, eval_report):
    text = text_of(acceptance((("drafter", eval_report(taps=(1, 16, 31, 46, 61))),)))
    assert "block 8, 5 taps: 1, 16, 31, 46, 61; float32 on cpu" in text
    assert "4 taps: 1, 21, 41, 61;" in text_of(acceptance((("drafter", eval_report(taps=(1, 21, 41, 61))),)))
    assert "tap" not in text_of(acceptance((("drafter", eval_report()),)))


def test_the_gates_verdict_stands_below_the_table(text_of, eval_report):
    counts = {"num_slots": 60, "num_labels": 24, "num_labels_equal": 24}
    held = Parity(verdict="agree", num_slots_equal=60, **counts)
    said = "parity of training and drafting: 60 of 60 drafts and 24 of 24 labels agree"
    assert said in text_of(acceptance((("drafter", eval_report(parity=held)),)))
    failed = Parity(verdict="differ", num_slots_equal=7, cause="tap offset", says="one layer late", **counts)
    text = text_of(acceptance((("drafter", eval_report(parity=failed)),)))
    assert "parity FAILED, likely cause: tap offset: one layer late (7 of 60 drafts" in text
    assert "parity" not in text_of(acceptance((("drafter", eval_report()),)))
