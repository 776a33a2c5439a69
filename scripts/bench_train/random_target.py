"""A target of Qwen3.6-27B's shapes with random weights, made where it is used: nothing is read from a disk."""

from typing import Any

import torch
from target_case import QWEN36_27B, TINY
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig

from dflashctl_remote.spec.drafter import TargetShape
from dflashctl_remote.target.load import Target


def text_config(num_layers: int, *, is_tiny: bool) -> Any:
    config = Qwen3_5TextConfig(
        **(TINY if is_tiny else QWEN36_27B), num_hidden_layers=num_layers, tie_word_embeddings=False
    )
    config._attn_implementation = "sdpa"
    return config


def make_target(device: torch.device, dtype: torch.dtype, *, num_layers: int, is_tiny: bool) -> Target:
    """Weights of standard deviation 0.02, norms as their layer wants them; filled on the device itself."""
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM

    config = text_config(num_layers, is_tiny=is_tiny)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = Qwen3_5ForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.02, generator=generator)
            elif name.endswith("A_log"):
                parameter.uniform_(-3.0, 1.0, generator=generator)
            else:
                # Qwen3.5's norms multiply by 1 + weight, its gated norm by the weight itself.
                parameter.fill_(1.0 if "linear_attn.norm" in name else 0.0)
    return Target(model, target_shape(is_tiny, num_layers))


def target_shape(is_tiny: bool, num_layers: int) -> TargetShape:
    config = text_config(num_layers, is_tiny=is_tiny)
    return TargetShape(
        num_layers=num_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=1e7,
        max_position_embeddings=262_144,
        mask_token_id=config.vocab_size - 1,
        bos_token_id=None,
        eos_token_ids=(config.vocab_size - 2,),
        pad_token_id=None,
    )
