"""A target of Qwen3.6-27B's shapes with random weights, made where it is used: nothing is read from a disk."""

from typing import Any

import torch

from dflashctl_remote.spec.drafter import TargetShape
from dflashctl_remote.target.load import Target

VOCABULARY = 248_320


def text_config(num_layers: int, *, is_tiny: bool) -> Any:
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig

    sizes: dict[str, Any] = {
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": False,
    }
    if is_tiny:
        sizes |= {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "vocab_size": 1000,
        }
    config = Qwen3_5TextConfig(**sizes)
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
