"""What both arms of the drafter's benchmark get: shapes, one packed row, anchors, weights by name, useful work."""

import zlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dflashctl_remote.data.pack import PackedRow
from dflashctl_remote.drafter.anchors import Anchors
from dflashctl_remote.spec.drafter import DrafterConfig

DOCUMENT_TOKENS = 2048
BLOCK = 16


@dataclass(frozen=True)
class Case:
    """One packed row with its anchors, and random inputs on the device."""

    config: DrafterConfig
    row: PackedRow
    anchors: Anchors
    taps_TF: Tensor
    final_TE: Tensor

    @property
    def num_scored(self) -> int:
        """Every block has all its slots inside its document."""
        return len(self.anchors) * (self.config.block_size - 1)

    @property
    def num_labels(self) -> int:
        offsets = np.arange(self.config.block_size - 1)
        return len(np.unique(self.anchors.indices_N[:, None] + offsets))


def make_config(tiny: bool) -> DrafterConfig:
    """The drafter of Qwen3.6-27B, or one of the same kind that a CPU runs at once."""
    width, inner, heads, kv_heads, layers, vocab = (64, 128, 4, 2, 2, 1000) if tiny else (5120, 17408, 32, 8, 5, 248320)
    return DrafterConfig(
        hidden_size=width,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=16 if tiny else 128,
        intermediate_size=inner,
        vocab_size=vocab,
        rms_norm_eps=1e-6,
        rope_theta=1e7,
        max_position_embeddings=262144,
        layer_types=("full_attention",) * layers,
        sliding_window=None,
        is_causal=False,
        block_size=BLOCK,
        mask_token_id=vocab - 1,
        tap_layers=(0, 2) if tiny else (1, 16, 31, 46, 61),
        num_target_layers=4 if tiny else 64,
    )


def make_case(config: DrafterConfig, num_tokens: int, num_anchors: int, device: torch.device) -> Case:
    """Whole documents, all supervised; anchors that leave room for a block, sorted."""
    index_T = np.arange(num_tokens)
    length = min(DOCUMENT_TOKENS, num_tokens)
    generator = np.random.default_rng(num_anchors)
    row = PackedRow(
        input_ids_T=generator.integers(0, config.vocab_size - 1, num_tokens),
        positions_T=index_T % length,
        document_ids_T=index_T // length,
        is_supervised_T=np.ones(num_tokens, dtype=bool),
        lengths=(length,) * (num_tokens // length),
    )
    room = index_T[index_T % length <= length - config.block_size]
    at = np.sort(generator.choice(room, num_anchors, replace=False))
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    return Case(
        config=config,
        row=row,
        anchors=Anchors(at, row.positions_T[at], row.document_ids_T[at], num_anchors),
        taps_TF=drawn("taps", (num_tokens, len(config.tap_layers) * config.hidden_size), 1.0, device, dtype),
        final_TE=drawn("final", (num_tokens, config.hidden_size), 1.0, device, dtype),
    )


def drawn(name: str, shape: tuple[int, ...], std: float, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Normal values that depend on the name and the device alone: both arms draw the same."""
    generator = torch.Generator(device).manual_seed(zlib.crc32(name.encode()))
    return torch.empty(shape, device=device, dtype=dtype).normal_(0.0, std, generator=generator)


def fill(module: torch.nn.Module) -> None:
    """Matrices normal with std 0.02 by their names, norms at one."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            # Heads and the head of the verifier are one matrix.
            shared = "head" if "lm_head" in name else name
            if parameter.ndim > 1:
                parameter.copy_(drawn(shared, tuple(parameter.shape), 0.02, parameter.device, parameter.dtype))
            else:
                parameter.fill_(1.0)


def useful_flop(case: Case, *, with_labels: bool) -> float:
    """Two for each multiply-add that the step cannot do without, so for no gradient of what is frozen.

    Context: fc without the gradient of its input; keys and values of all layers. Blocks: all layers, forward and both
    gradients, less the first layer's into the frozen embedding. Attention: 3.5 times its forward. Head: forward and
    gradient of the input.
    """
    config, num_tokens = case.config, len(case.row.input_ids_T)
    width, layers = config.hidden_size, config.num_layers
    mixed, kv = config.num_heads * config.head_dim, 2 * config.num_kv_heads * config.head_dim
    layer = width * (2 * mixed + kv + 3 * config.intermediate_size)
    queries = len(case.anchors) * config.block_size
    keys = float(case.anchors.positions_N.sum() + len(case.anchors) * config.block_size) * config.block_size
    context = num_tokens * (4 * len(config.tap_layers) * width * width + 6 * layers * width * kv)
    blocks = queries * (6 * layers * layer - 2 * width * (mixed + kv))
    attention = 3.5 * 4 * layers * mixed * keys
    head = case.num_scored * 4 * width * config.vocab_size
    labels = case.num_labels * 2 * width * config.vocab_size if with_labels else 0
    return float(context + blocks + attention + head + labels)
