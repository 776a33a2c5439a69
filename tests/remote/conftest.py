"""Tiny random targets of both kinds, built in memory; the hybrid forgets slowly, so that its state matters."""

import pytest
import torch
from transformers import PreTrainedModel, Qwen3_5ForCausalLM, Qwen3_5TextConfig, Qwen3Config, Qwen3ForCausalLM

from dflashctl_remote.spec.drafter import TargetShape
from dflashctl_remote.target.load import Target

VOCAB = 300


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """These models are too small to share out; threads that wait for one another cost more than they compute."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def attention_target() -> Target:
    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=1024,
        initializer_range=0.1,
        tie_word_embeddings=False,
        eos_token_id=2,
        pad_token_id=0,
    )
    return _target(Qwen3ForCausalLM(config))


@pytest.fixture(scope="session")
def hybrid_target() -> Target:
    torch.manual_seed(2)
    config = Qwen3_5TextConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"],
        max_position_embeddings=1024,
        initializer_range=0.1,
        tie_word_embeddings=False,
        eos_token_id=2,
        pad_token_id=0,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
    )
    model = Qwen3_5ForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith("A_log"):
            # The default draws decays that forget within a token and hide a wrong state.
            torch.nn.init.constant_(parameter, -3.0)
    return _target(model)


@pytest.fixture(params=["attention", "hybrid"])
def target(request: pytest.FixtureRequest) -> Target:
    """Both kinds, one after the other."""
    return request.getfixturevalue(f"{request.param}_target")


def _target(model: PreTrainedModel) -> Target:
    config = model.config
    shape = TargetShape(
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=config.rope_parameters["rope_theta"],
        max_position_embeddings=config.max_position_embeddings,
        mask_token_id=3,
        bos_token_id=None,
        eos_token_ids=(2,),
        pad_token_id=0,
    )
    return Target(model, shape)
