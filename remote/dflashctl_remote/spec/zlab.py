"""config.json of a drafter in the z-lab layout, the one that SGLang, vLLM and llama.cpp read."""

from typing import TYPE_CHECKING, Any

from dflashctl_remote.spec.errors import ArtifactCorrupt

if TYPE_CHECKING:
    from dflashctl_remote.spec.drafter import DrafterConfig


def zlab_of(config: "DrafterConfig", dtype: str) -> dict[str, Any]:
    """config.json in the z-lab layout. `block_size` stands at both places where readers look.

    `is_causal` is written whenever one value holds for all layers; a mix of causal sliding layers and
    bidirectional full ones is what its absence means to every reader.
    """
    sliding = "sliding_attention" in config.layer_types
    dflash = {
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": list(config.tap_layers),
        "block_size": config.block_size,
    }
    out: dict[str, Any] = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "rope_theta": config.rope_theta,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": config.initializer_range,
        "layer_types": list(config.layer_types),
        "sliding_window": config.sliding_window,
        "use_sliding_window": sliding,
        "max_window_layers": config.num_layers,
        "num_target_layers": config.num_target_layers,
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": list(config.tap_layers),
        "dflash_config": dflash,
        "tie_word_embeddings": False,
        "dtype": dtype,
        "torch_dtype": dtype,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
        "pad_token_id": config.pad_token_id,
    }
    causal = {config.is_layer_causal(i) for i in range(config.num_layers)}
    if len(causal) == 1:
        out["is_causal"] = causal.pop()
    return out


def fields_of_zlab(raw: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `DrafterConfig` out of config.json, read as z-lab's package does: dflash_config, then the top.

    Raises ArtifactCorrupt if a field is missing, the two places disagree on the block size, or layers and window do
    not go together.
    """
    nested = raw.get("dflash_config") or {}

    def find(name: str) -> Any:
        if name in nested:
            return nested[name]
        if name in raw:
            return raw[name]
        raise ArtifactCorrupt(f"config.json has no {name}, neither in dflash_config nor at the top")

    if "block_size" in nested and "block_size" in raw and nested["block_size"] != raw["block_size"]:
        raise ArtifactCorrupt(
            f"config.json gives two block sizes: {raw['block_size']} at the top, "
            f"{nested['block_size']} in dflash_config"
        )
    num_layers = int(find("num_hidden_layers"))
    rope = raw.get("rope_parameters") or {}
    theta = raw.get("rope_theta", rope.get("rope_theta"))
    if theta is None:
        raise ArtifactCorrupt("config.json has no rope_theta")
    types = tuple(raw.get("layer_types") or ["full_attention"] * num_layers)
    if len(types) != num_layers:
        raise ArtifactCorrupt(f"config.json has {len(types)} layer types for {num_layers} layers")
    if "sliding_attention" in types and raw.get("sliding_window") is None:
        raise ArtifactCorrupt("config.json has sliding layers and no sliding_window")
    return {
        "hidden_size": find("hidden_size"),
        "num_layers": num_layers,
        "num_heads": find("num_attention_heads"),
        "num_kv_heads": find("num_key_value_heads"),
        "head_dim": find("head_dim"),
        "intermediate_size": find("intermediate_size"),
        "vocab_size": find("vocab_size"),
        "rms_norm_eps": find("rms_norm_eps"),
        "rope_theta": float(theta),
        "max_position_embeddings": find("max_position_embeddings"),
        "layer_types": types,
        "sliding_window": raw.get("sliding_window") if "sliding_attention" in types else None,
        "is_causal": raw.get("is_causal", nested.get("causal")),
        "block_size": find("block_size"),
        "mask_token_id": find("mask_token_id"),
        "tap_layers": tuple(find("target_layer_ids")),
        "num_target_layers": find("num_target_layers"),
        "initializer_range": raw.get("initializer_range", 0.02),
        "bos_token_id": raw.get("bos_token_id"),
        "eos_token_id": raw.get("eos_token_id"),
        "pad_token_id": raw.get("pad_token_id"),
    }
