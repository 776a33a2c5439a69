"""The memory of a step at the shapes of a 27B target, on a GPU. The arithmetic is in the drafter's README.md."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dflashctl_remote.data.pack import PackedRow
from dflashctl_remote.drafter.anchors import Anchors, sample_anchors
from dflashctl_remote.drafter.model import Drafter
from dflashctl_remote.drafter.scored import Scored, scored_slots
from dflashctl_remote.drafter.step import drafter_step
from dflashctl_remote.spec.drafter import DrafterConfig
from dflashctl_remote.spec.objective import ObjectiveSpec

PLAIN = ObjectiveSpec()

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),
]


@dataclass(frozen=True)
class Ends:
    embedding_VE: Tensor
    head_VE: Tensor

    def embed(self, ids: Tensor) -> Tensor:
        return self.embedding_VE[ids]


@dataclass(frozen=True)
class Batch:
    row: PackedRow
    anchors: Anchors
    taps_TF: Tensor
    scored: Scored


def test_four_times_the_blocks_take_no_more_memory(make_config: Any) -> None:
    """At the shapes of a 27B target: r = 1 within the 20 GiB of README.md, and r = 4 within 1 GiB of r = 1."""
    config: DrafterConfig = make_config(
        hidden_size=5120,
        num_layers=5,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        intermediate_size=17408,
        vocab_size=248320,
        mask_token_id=248319,
        layer_types=("full_attention",) * 5,
        block_size=16,
        tap_layers=(1, 16, 31, 46, 61),
        num_target_layers=64,
        max_position_embeddings=262144,
    )
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    peaks = [_peak_bytes(config, num_anchors) for num_anchors in (512, 2048)]
    assert peaks[0] <= 20 * 2**30
    assert peaks[1] - peaks[0] <= 2**30


def _peak_bytes(config: DrafterConfig, num_anchors: int) -> int:
    """Of the second step on a row of 8192 tokens in four documents; bf16, nothing else on the device."""
    index_T, cuda = np.arange(8192), torch.device("cuda")
    row = PackedRow(index_T, index_T % 2048, index_T // 2048, np.ones(8192, dtype=bool), (2048,) * 4)
    anchors = sample_anchors(row, num_anchors=num_anchors, seed=0, batch=0)

    def drawn(*shape: int) -> Tensor:
        return torch.empty(shape, device=cuda, dtype=torch.bfloat16).normal_(0, 0.02)

    with cuda:
        drafter = Drafter(config).bfloat16()
    ends = Ends(drawn(config.vocab_size, config.hidden_size), drawn(config.vocab_size, config.hidden_size))
    taps_TF, final_TE = drawn(8192, 5 * config.hidden_size), drawn(8192, config.hidden_size)
    scored = scored_slots(ends, row, final_TE, anchors, ObjectiveSpec(labels="data"), config.block_size)
    batch = Batch(row, anchors, taps_TF, scored)
    for _ in range(2):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        drafter_step(drafter, ends, batch, PLAIN, attention="flex")
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()
