"""The drafter's shape: what is asked for (`DrafterSpec`) and what was resolved against a target (`DrafterConfig`).

config.json, the z-lab layout of `DrafterConfig`, is in zlab.py.
"""

import math
from typing import Any, Literal, Protocol

from pydantic import Field

from dflashctl_remote.spec.base import Spec
from dflashctl_remote.spec.errors import BadInput
from dflashctl_remote.spec.zlab import fields_of_zlab, zlab_of

LayerType = Literal["full_attention", "sliding_attention"]

GAMMA_BY_BLOCK_SIZE = {16: 7.0, 10: 5.0, 8: 4.0}


class DrafterSpec(Spec):
    """Fields left at None are taken from the target or from the rule that the field names."""

    num_layers: int = Field(default=5, gt=0)
    num_heads: int = Field(default=32, gt=0)
    num_kv_heads: int = Field(default=8, gt=0)
    head_dim: int = Field(default=128, gt=0, multiple_of=2)
    """Even: the rotary embedding turns pairs."""
    intermediate_size: int | None = Field(default=None, gt=0)
    """MLP width; None: the target's."""
    block_size: int = Field(default=16, ge=2)
    """The anchor and at least one slot."""
    num_taps: int = Field(default=5, gt=0)
    tap_layers: tuple[int, ...] | None = Field(default=None, min_length=1)
    """0-based decoder layers of the target whose outputs are read; None: evenly spaced (`even_taps`)."""
    layer_pattern: str | None = Field(default=None, pattern="^[SF]+$")
    """A letter a layer, S sliding, F full, as SSSSF; a shorter pattern is repeated. None: by `num_sliding_layers`."""
    num_sliding_layers: int = Field(default=0, ge=0)
    """The first so many layers use the sliding window (z-lab Qwen3.6-27B: 4 of 5)."""
    sliding_window_tokens: int | None = Field(default=None, gt=0)
    """Of all sliding layers."""
    mask_token_id: int | None = None
    """None: the tokenizer's mask token; never pad or eos."""
    is_causal: bool | None = None
    """In-block causality of all layers; None: full layers bidirectional, sliding layers causal."""
    initializer_range: float | None = Field(default=None, gt=0)
    """Standard deviation of new weights; None: 0.02, for narrow targets width**-0.5 (`default_initializer_range`)."""


class DrafterConfig(Spec):
    """Everything that defines the drafter's computation."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    layer_types: tuple[LayerType, ...]
    sliding_window: int | None
    is_causal: bool | None
    block_size: int
    mask_token_id: int
    tap_layers: tuple[int, ...]
    num_target_layers: int
    initializer_range: float = 0.02
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None

    @property
    def layer_pattern(self) -> str:
        """A letter a layer: S sliding, F full."""
        return "".join("S" if kind == "sliding_attention" else "F" for kind in self.layer_types)

    def is_layer_causal(self, layer: int) -> bool:
        """Whether a slot of this layer sees only the slots before it in its block."""
        if self.is_causal is not None:
            return self.is_causal
        return self.layer_types[layer] == "sliding_attention"

    def window_of(self, layer: int) -> int | None:
        """Keys with query position - key position < window are visible; None: all."""
        return self.sliding_window if self.layer_types[layer] == "sliding_attention" else None

    def to_zlab(self, dtype: str) -> dict[str, Any]:
        """config.json in the z-lab layout."""
        return zlab_of(self, dtype)

    @classmethod
    def from_zlab(cls, raw: dict[str, Any]) -> "DrafterConfig":
        """Read config.json in the z-lab layout. Raises ArtifactCorrupt: a field is missing, or two places disagree."""
        return cls(**fields_of_zlab(raw))


class TargetShape(Spec):
    """What a drafter must know of its target; read from the target's own config and tokenizer."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    mask_token_id: int | None
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None


def even_taps(num_target_layers: int, num_taps: int) -> tuple[int, ...]:
    """z-lab's rule: evenly spaced from layer 1 to n-3, rounded; a single tap reads the middle layer."""
    if num_taps == 1:
        return (num_target_layers // 2,)
    span = num_target_layers - 4
    return tuple(round(1 + i * span / (num_taps - 1)) for i in range(num_taps))


def chosen_taps(spec: DrafterSpec, num_target_layers: int) -> tuple[int, ...]:
    """Those of the spec, else by z-lab's rule. Raises BadInput for taps out of range, repeated or not rising."""
    taps = spec.tap_layers if spec.tap_layers is not None else even_taps(num_target_layers, spec.num_taps)
    if not taps or min(taps) < 0 or max(taps) >= num_target_layers:
        raise BadInput(
            f"taps {list(taps)} are out of range: the target has layers 0 to {num_target_layers - 1}",
            hint="set drafter.tap_layers, or fewer drafter.num_taps",
        )
    if list(taps) != sorted(set(taps)):
        raise BadInput(
            f"taps {list(taps)} must be rising and differ from one another",
            hint="set drafter.tap_layers, or fewer drafter.num_taps",
        )
    return tuple(taps)


def chosen_layer_types(spec: DrafterSpec) -> tuple[LayerType, ...]:
    """One kind a layer. Raises BadInput: a pattern that does not fill the layers, or a window without sliding layers or
    the reverse.
    """
    pattern = spec.layer_pattern
    if pattern is None:
        if spec.num_sliding_layers > spec.num_layers:
            raise BadInput(f"{spec.num_sliding_layers} sliding layers of {spec.num_layers} layers")
        letters = "S" * spec.num_sliding_layers + "F" * (spec.num_layers - spec.num_sliding_layers)
    elif spec.num_sliding_layers > 0:
        raise BadInput("layer_pattern and num_sliding_layers say the same in two ways: set one of them")
    elif spec.num_layers % len(pattern):
        raise BadInput(
            f"layer_pattern {pattern} has {len(pattern)} letters, which do not fill {spec.num_layers} layers evenly",
            hint="write one letter a layer, or set drafter.num_layers",
        )
    else:
        letters = pattern * (spec.num_layers // len(pattern))
    if ("S" in letters) != (spec.sliding_window_tokens is not None):
        raise BadInput("sliding layers and sliding_window_tokens go together: set both or neither")
    return tuple("sliding_attention" if letter == "S" else "full_attention" for letter in letters)


def resolve_drafter(spec: DrafterSpec, target: TargetShape) -> DrafterConfig:
    """Fill the spec from the target and check what would make a drafter silently useless.

    Raises BadInput: taps out of range or repeated, mask token missing, out of the vocabulary, or equal to
    pad or eos, a window without sliding layers or the reverse, heads that do not divide.
    """
    taps = chosen_taps(spec, target.num_layers)
    mask = spec.mask_token_id if spec.mask_token_id is not None else target.mask_token_id
    if mask is None:
        raise BadInput(
            "the tokenizer has no mask token and drafter.mask_token_id is not set",
            hint="name an unused id of the vocabulary that is neither pad nor eos (Qwen3.6: 248070)",
        )
    if not 0 <= mask < target.vocab_size:
        raise BadInput(f"mask token {mask} is outside the vocabulary of {target.vocab_size}")
    if mask == target.pad_token_id:
        raise BadInput(f"mask token {mask} is the pad token: the drafter could not tell them apart")
    if mask in target.eos_token_ids:
        raise BadInput(f"mask token {mask} is an eos token: the drafter could not tell them apart")
    if spec.num_heads % spec.num_kv_heads:
        raise BadInput(f"{spec.num_heads} heads cannot share {spec.num_kv_heads} key-value heads evenly")
    return DrafterConfig(
        hidden_size=target.hidden_size,
        num_layers=spec.num_layers,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        intermediate_size=spec.intermediate_size or target.intermediate_size,
        vocab_size=target.vocab_size,
        rms_norm_eps=target.rms_norm_eps,
        rope_theta=target.rope_theta,
        max_position_embeddings=target.max_position_embeddings,
        layer_types=chosen_layer_types(spec),
        sliding_window=spec.sliding_window_tokens,
        is_causal=spec.is_causal,
        block_size=spec.block_size,
        mask_token_id=mask,
        tap_layers=taps,
        num_target_layers=target.num_layers,
        initializer_range=spec.initializer_range or default_initializer_range(target.hidden_size),
        bos_token_id=target.bos_token_id,
        eos_token_id=target.eos_token_ids[0] if target.eos_token_ids else None,
        pad_token_id=target.pad_token_id,
    )


class Sized(Protocol):
    """The sizes of a target that a drafter depends on."""

    @property
    def num_layers(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...


def check_fit(config: DrafterConfig, shape: Sized) -> None:
    """Raises BadInput if the drafter was not made for a target of this shape."""
    for what, drafter_has, target_has in (
        ("hidden size", config.hidden_size, shape.hidden_size),
        ("vocabulary", config.vocab_size, shape.vocab_size),
        ("number of target layers", config.num_target_layers, shape.num_layers),
    ):
        if drafter_has != target_has:
            raise BadInput(
                f"the drafter was made for another target: its {what} is {drafter_has}, the target's {target_has}",
                hint="name the target that it was trained for",
            )
    if not 0 <= config.mask_token_id < shape.vocab_size:
        raise BadInput(
            f"the drafter's mask token is {config.mask_token_id}, outside the target's vocabulary of "
            f"{shape.vocab_size}",
            hint="name the target that it was trained for",
        )
    if not all(0 <= tap < shape.num_layers for tap in config.tap_layers) or not config.tap_layers:
        raise BadInput(
            f"the drafter taps layers {list(config.tap_layers)}, and the target has 0 to {shape.num_layers - 1}",
            hint="name the target that it was trained for",
        )


def default_initializer_range(width: int) -> float:
    """0.02, or width**-0.5 where that is more: the branches of a narrow drafter must be heard beside its embeddings.

    Measured on the embedded target (width 256), step 200 at learning rate 1.5e-3: loss 3.76 with 0.06, 3.93 with 0.02.
    """
    return max(0.02, 1.0 / math.sqrt(width))


def default_gamma(block_size: int) -> float:
    """Decay of the slot weights: 7, 5, 4 for blocks of 16, 10, 8; between and beyond, block_size / 2 rounded down."""
    return GAMMA_BY_BLOCK_SIZE.get(block_size, float(max(1, block_size // 2)))
