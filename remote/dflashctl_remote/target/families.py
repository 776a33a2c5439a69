"""Which decoders packed.py can walk: families known by name, whose layers look as expected."""

from collections.abc import Iterator
from typing import Any

IS_ZERO_CENTRED = {
    "qwen3_5_text": True,
    "qwen3_5_moe_text": True,
    "qwen3_next": True,
    "qwen3": False,
    "qwen2": False,
    "llama": False,
}
"""By model_type: whether the weights of its norms are kept minus one."""

_ROPE_BY_LENGTH = ("dynamic", "longrope")


def why_not_walkable(decoder: Any) -> str | None:
    """The first reason, None if there is none: an unknown family, or layers that are not as expected."""
    return next(_reasons(decoder), None)


def _reasons(decoder: Any) -> Iterator[str]:
    """Only the first is to be taken: what follows relies on there having been none."""
    config = decoder.config
    if config.model_type not in IS_ZERO_CENTRED:
        yield f"a target of type {config.model_type} is not known to the packed forward pass"
    yield from _missing(decoder, "the decoder", "embed_tokens", "layers", "norm", "rotary_emb")
    if config.hidden_act != "silu":
        yield f"the activation is {config.hidden_act}, not silu"
    rope = getattr(decoder.rotary_emb, "rope_type", "default")
    if rope in _ROPE_BY_LENGTH:
        yield f"the rotary embedding ({rope}) depends on the length of the text"
    for index, layer in enumerate(decoder.layers):
        name = f"layer {index}"
        yield from _missing(layer, name, "input_layernorm", "post_attention_layernorm", "mlp")
        if hasattr(layer, "linear_attn"):
            yield from _gated_delta_reasons(layer.linear_attn, name)
        else:
            yield from _missing(layer, name, "self_attn")
            yield from _attention_reasons(layer.self_attn, name)


def _attention_reasons(mixer: Any, name: str) -> Iterator[str]:
    yield from _missing(mixer, name, "q_proj", "k_proj", "v_proj", "o_proj", "head_dim", "scaling")
    if getattr(mixer, "sliding_window", None) is not None:
        yield f"the attention of {name} is limited to a window"


def _gated_delta_reasons(mixer: Any, name: str) -> Iterator[str]:
    yield from _missing(mixer, name, "conv1d", "A_log", "dt_bias", "norm", "out_proj")
    yield from _missing(mixer, name, "num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim")
    if hasattr(mixer, "in_proj_qkvz"):
        yield from _missing(mixer, name, "in_proj_ba")
    else:
        yield from _missing(mixer, name, "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
    if mixer.conv1d.bias is not None:
        yield f"the convolution of {name} has a bias"
    if getattr(mixer.norm, "activation", "silu") not in ("silu", "swish"):
        yield f"the output gate of {name} is {mixer.norm.activation}, not silu"


def _missing(module: Any, name: str, *attributes: str) -> Iterator[str]:
    for attribute in attributes:
        if not hasattr(module, attribute):
            yield f"{name} has no {attribute}, so it is built otherwise than those that are known"
