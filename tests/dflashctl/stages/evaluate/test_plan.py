from pathlib import Path

import pytest

from dflashctl.stages.evaluate.plan import compare, default_output
from dflashctl_remote.spec.evaluate import EvalSpec


def test_default_output_is_the_same_for_the_same_settings_and_no_other():
    spec = EvalSpec(target="/t", checkpoint="/c", prompts="/p", output="")
    first = default_output(spec, "demo@20", Path("/e"))
    assert first.name.startswith("demo-step-20-")
    assert default_output(spec.model_copy(update={"output": "/x"}), "demo@20", Path("/e")) == first
    assert default_output(spec.model_copy(update={"num_prompts": 3}), "demo@20", Path("/e")) != first


def test_headline_is_tau_without_repeats(eval_report):
    result = compare(eval_report(tau=3.0, headline=2.0), eval_report(tau=4.0, headline=1.0))
    assert result.headline.name == "tau without repeats"
    assert result.headline.change == pytest.approx(-0.5)


def test_same_measurement_has_no_caveat(eval_report):
    assert compare(eval_report(), eval_report()).caveats == ()


def test_other_target_or_prompts_are_a_caveat(eval_report):
    result = compare(eval_report(), eval_report(target="/other", num_prompts=3))
    assert [caveat.split()[0] for caveat in result.caveats] == ["target", "num_prompts"]
