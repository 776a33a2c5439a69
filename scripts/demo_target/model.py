"""The demo target's architecture and how its folder is written. Not for training it: see `train.py`."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerBase,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write an untrained model beside a tokenizer.")
    parser.add_argument("--folder", type=Path, required=True, help="holds the tokenizer; gets the model")
    args = parser.parse_args()
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(args.folder)
    write_model(Qwen3_5ForCausalLM(model_config(tokenizer)), args.folder)


def model_config(tokenizer: PreTrainedTokenizerBase) -> Qwen3_5TextConfig:
    """Few wide layers: on a CPU the time of a decoded token is mostly overhead per layer."""
    return Qwen3_5TextConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=448,
        num_hidden_layers=4,
        layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention"],
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        linear_conv_kernel_dim=4,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": [3, 3, 2],
        },
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        use_cache=True,
    )


def write_model(model: Qwen3_5ForCausalLM, folder: Path) -> None:
    """model.safetensors in bf16, config.json and generation_config.json; the tokenizer stays as it is."""
    config = model.config
    stored = Qwen3_5ForCausalLM(config)
    stored.load_state_dict(model.state_dict())
    stored.generation_config = GenerationConfig(
        eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id, do_sample=False
    )
    stored.to(torch.bfloat16).save_pretrained(folder)


if __name__ == "__main__":
    main()
