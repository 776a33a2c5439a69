import math
from typing import Any

import pytest
from pydantic import ValidationError

from dflashctl_remote.spec.objective import ObjectiveSpec
from dflashctl_remote.spec.train import ObjectiveSpec as TrainsObjective


def test_the_default_is_hard_cross_entropy_with_decay_and_nothing_else() -> None:
    spec = ObjectiveSpec()
    assert (spec.labels, spec.loss, spec.weighting, spec.gamma) == ("target", "hard_ce", "decay", None)
    assert (spec.context_noise_std, spec.confidence_weight) == (0, 0)


def test_the_train_section_holds_this_objective() -> None:
    assert TrainsObjective is ObjectiveSpec


@pytest.mark.parametrize(
    "change",
    [
        {"loss": "mse"},
        {"weighting": "none"},
        {"loss": "soft_kl", "temperature": 0},
        {"loss": "soft_kl", "temperature": math.inf},
        {"gamma": 0},
        {"weighting": "d_pace", "d_pace_alpha": 0},
        {"weighting": "d_pace", "d_pace_alpha": 1.01},
        {"weighting": "streak", "streak_alpha": -1},
        {"confidence_weight": -0.1},
        {"context_noise": "laplace"},
        {"context_noise_std": math.inf},
        {"context_noise_std": 0.1, "context_noise_end_std": -0.1},
        {"loss_chunk_rows": 0},
        {"anchors_per_group": 0},
    ],
)
def test_a_value_out_of_bounds_is_no_objective(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ObjectiveSpec.model_validate(change)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"temperature": 2.0},
            "temperature is set and belongs to loss: soft_kl: choose that, or leave temperature out",
        ),
        ({"weighting": "d_pace", "gamma": 7.0}, "gamma is set and belongs to weighting: decay or streak"),
        ({"d_pace_alpha": 0.5}, "d_pace_alpha is set and belongs to weighting: d_pace"),
        ({"weighting": "d_pace", "streak_alpha": 0.5}, "streak_alpha is set and belongs to weighting: streak"),
        ({"context_noise_end_std": 0.01}, "context_noise_end_std is set and belongs to a context_noise_std above 0"),
        ({"context_noise": "uniform"}, "context_noise: uniform adds nothing while context_noise_std is 0: set both"),
        ({"loss": "soft_kl", "labels": "data"}, "loss: soft_kl learns what the target says, so labels must be target"),
    ],
)
def test_a_parameter_of_what_was_not_chosen_is_refused_in_one_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ObjectiveSpec.model_validate(change)
    (error,) = caught.value.errors()
    assert error["msg"].startswith(sentence)


@pytest.mark.parametrize("loss", [{"loss": "hard_ce"}, {"loss": "soft_kl", "temperature": 2.0}], ids=str)
@pytest.mark.parametrize(
    "weighting",
    [
        {"weighting": "decay", "gamma": 7.0},
        {"weighting": "d_pace", "d_pace_alpha": 0.5},
        {"weighting": "streak", "streak_alpha": 0.0, "gamma": 4.0},
    ],
    ids=str,
)
def test_any_loss_goes_with_any_weighting_noise_and_confidence(loss: dict[str, Any], weighting: dict[str, Any]) -> None:
    noise = {"context_noise": "uniform", "context_noise_std": 0.1, "context_noise_end_std": 0.01}
    spec = ObjectiveSpec.model_validate(loss | weighting | noise | {"confidence_weight": 0.1})
    assert ObjectiveSpec.model_validate_json(spec.model_dump_json()) == spec
