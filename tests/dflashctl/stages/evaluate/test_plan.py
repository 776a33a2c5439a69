import pytest

from dflashctl.stages.evaluate.plan import compare


def test_headline_is_tau_without_repeats(eval_report):
    result = compare(eval_report(tau=3.0, headline=2.0), eval_report(tau=4.0, headline=1.0))
    assert result.headline.name == "tau without repeats"
    assert result.headline.change == pytest.approx(-0.5)


def test_same_measurement_has_no_caveat(eval_report):
    assert compare(eval_report(), eval_report()).caveats == ()


def test_other_target_or_prompts_are_a_caveat(eval_report):
    result = compare(eval_report(), eval_report(target="/other", num_prompts=3))
    assert [caveat.split()[0] for caveat in result.caveats] == ["target", "num_prompts"]
