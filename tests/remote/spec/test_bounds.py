import math

import pytest
from pydantic import ValidationError

from dflashctl_remote.spec.drafter import DrafterSpec
from dflashctl_remote.spec.train import TrainSpec


@pytest.mark.parametrize(
    "change",
    [
        {"num_layers": 0},
        {"num_heads": 0},
        {"num_kv_heads": -1},
        {"head_dim": 7},
        {"intermediate_size": 0},
        {"block_size": 1},
        {"num_taps": 0},
        {"tap_layers": ()},
        {"num_sliding_layers": 1, "sliding_window_tokens": 0},
        {"layer_pattern": ""},
        {"layer_pattern": "SSX"},
    ],
)
def test_a_drafter_that_cannot_be_built_is_no_drafter_spec(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        DrafterSpec.model_validate(change)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2**63},
        {"num_threads": 0},
        {"optim": {"learning_rate": math.inf}},
        {"optim": {"eps": math.nan}},
        {"optim": {"betas": (0.9, 1.0)}},
        {"optim": {"weight_decay": -0.1}},
        {"batch": {"block_ratio": math.inf}},
        {"objective": {"context_noise_std": math.inf}},
    ],
)
def test_a_setting_that_torch_or_json_would_trip_over_is_no_train_spec(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TrainSpec.model_validate({"target": "t", "dataset": "d", "num_steps": 1, **change})


@pytest.mark.parametrize(
    ("placement", "said"),
    [
        ({"ranks": 3}, "accumulation 4 cannot be shared by the 3 processes"),
        ({"ranks": 4, "nodes": 2}, "the 8 processes of this placement; use a multiple of 8"),
        ({"layout": "1+3"}, "accumulation 4 cannot be shared by the 3 drafters"),
    ],
)
def test_a_step_that_its_processes_or_drafters_cannot_share_is_refused(placement: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        TrainSpec.model_validate(
            {"target": "t", "dataset": "d", "num_steps": 1, "optim": {"accumulation": 4}, "placement": placement}
        )
