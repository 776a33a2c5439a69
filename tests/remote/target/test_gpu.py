"""The same claims as test_taps.py, test_cache.py and test_batch.py on a GPU, through fla's kernels where installed.

Tolerances are those of the kernels (fla accumulates in tf32 and bf16 pieces); a wrong state is off by 0.1 to 1.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import LinearAttentionLayer

from dflashctl_remote.target.cache import RollbackCache
from dflashctl_remote.target.load import Target
from dflashctl_remote.target.taps import Row

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

TOLERANCE = 2e-2


class PackedDocuments(Row):
    def __init__(self, documents: list[np.ndarray]) -> None:
        self._documents = documents

    @property
    def input_ids_T(self) -> np.ndarray:
        return np.concatenate(self._documents)

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(len(document) for document in self._documents)


@pytest.fixture
def gpu_target(target: Target) -> Iterator[Target]:
    model = target.model.to("cuda")
    yield Target(model, target.shape)
    target.model.to("cpu")


def random_ids(num_tokens: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(5, 300, size=num_tokens).tolist()


def test_states_of_a_packed_row_equal_those_of_each_document_alone_on_a_gpu(gpu_target: Target) -> None:
    documents = [np.array(random_ids(length, seed)) for seed, length in enumerate((137, 250, 5, 70))]
    packed = gpu_target.states(PackedDocuments(documents), (1, 3))
    start = 0
    for document in documents:
        alone = gpu_target.states(PackedDocuments([document]), (1, 3))
        end = start + len(document)
        assert torch.allclose(packed.taps_TF[start:end], alone.taps_TF, rtol=0, atol=TOLERANCE)
        assert torch.allclose(packed.final_TE[start:end], alone.final_TE, rtol=0, atol=TOLERANCE)
        start = end


@pytest.mark.parametrize("num_accepted", [1, 3, 7, 8])
def test_after_commit_every_state_equals_a_fresh_run_on_a_gpu(gpu_target: Target, num_accepted: int) -> None:
    prompt, block = random_ids(130, seed=1), random_ids(8, seed=2)
    cache = RollbackCache(gpu_target, (1, 3))
    cache.prefill(prompt)
    cache.verify(block)
    cache.commit(num_accepted)
    fresh = DynamicCache(config=gpu_target.model.config)
    tokens = torch.tensor([prompt + block[:num_accepted]], device="cuda")
    with torch.no_grad():
        gpu_target.model(input_ids=tokens, past_key_values=fresh, use_cache=True)
    for ours, theirs in zip(cache._cache.layers, fresh.layers, strict=True):
        pairs = zip(_states(ours), _states(theirs), strict=True)
        for mine, other in pairs:
            assert torch.allclose(mine, other, rtol=0, atol=TOLERANCE)


def _states(layer: Any) -> tuple[Tensor, Tensor]:
    if isinstance(layer, LinearAttentionLayer):
        return layer.recurrent_states[0], layer.conv_states[0]
    return layer.keys, layer.values
