"""A tiny drafter, a frozen random embedding and head, and packed rows of made-up documents."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from dflashctl_remote.data.pack import PackedRow
from dflashctl_remote.drafter.model import Drafter
from dflashctl_remote.spec.drafter import DrafterConfig

VOCAB_SIZE = 61
WIDTH = 32


@dataclass(frozen=True)
class FrozenEmbeddingAndHead:
    embedding_VE: Tensor
    head_VE: Tensor

    def embed(self, ids: Tensor) -> Tensor:
        return self.embedding_VE[ids]


@dataclass(frozen=True)
class MadeUpStates:
    taps_TF: Tensor
    final_TE: Tensor


@pytest.fixture
def make_config() -> Callable[..., DrafterConfig]:
    def make(**changes: object) -> DrafterConfig:
        return DrafterConfig.model_validate(
            {
                "hidden_size": WIDTH,
                "num_layers": 2,
                "num_heads": 4,
                "num_kv_heads": 2,
                "head_dim": 16,
                "intermediate_size": 48,
                "vocab_size": VOCAB_SIZE,
                "rms_norm_eps": 1e-6,
                "rope_theta": 1e4,
                "max_position_embeddings": 512,
                "layer_types": ("full_attention", "full_attention"),
                "sliding_window": None,
                "is_causal": None,
                "block_size": 4,
                "mask_token_id": 60,
                "tap_layers": (1, 3),
                "num_target_layers": 6,
                **changes,
            }
        )

    return make


@pytest.fixture
def mixed_config(make_config: Callable[..., DrafterConfig]) -> DrafterConfig:
    """A causal sliding layer with a window that bites, then a bidirectional full one."""
    return make_config(layer_types=("sliding_attention", "full_attention"), sliding_window=6)


@pytest.fixture
def make_drafter() -> Callable[[DrafterConfig], Drafter]:
    def make(config: DrafterConfig) -> Drafter:
        drafter = Drafter(config)
        drafter.init_weights(seed=3)
        with torch.no_grad():  # weights of 0.02 would hide what attention does
            for parameter in drafter.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(8)
        return drafter

    return make


@pytest.fixture
def ends() -> FrozenEmbeddingAndHead:
    generator = torch.Generator().manual_seed(11)
    return FrozenEmbeddingAndHead(
        torch.randn(VOCAB_SIZE, WIDTH, generator=generator),
        torch.randn(VOCAB_SIZE, WIDTH, generator=generator) / WIDTH**0.5,
    )


@pytest.fixture
def make_states() -> Callable[[PackedRow, DrafterConfig], MadeUpStates]:
    def make(row: PackedRow, config: DrafterConfig) -> MadeUpStates:
        generator = torch.Generator().manual_seed(5)
        length = len(row.input_ids_T)
        return MadeUpStates(
            torch.randn(length, len(config.tap_layers) * config.hidden_size, generator=generator),
            torch.randn(length, config.hidden_size, generator=generator),
        )

    return make


@pytest.fixture
def make_row() -> Callable[..., PackedRow]:
    def make(lengths: tuple[int, ...], *, total: int, prompt: int = 2, seed: int = 0) -> PackedRow:
        """Documents of these lengths whose first `prompt` tokens are not supervised."""
        ids = np.random.default_rng(seed).integers(0, VOCAB_SIZE - 1, total)
        positions, documents = np.zeros(total, dtype=np.int64), np.full(total, -1, dtype=np.int64)
        supervised = np.zeros(total, dtype=bool)
        start = 0
        for document, length in enumerate(lengths):
            positions[start : start + length] = np.arange(length)
            documents[start : start + length] = document
            supervised[start + prompt : start + length] = True
            start += length
        ids[start:] = 0
        return PackedRow(ids.astype(np.int64), positions, documents, supervised, tuple(lengths))

    return make
