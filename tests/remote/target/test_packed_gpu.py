"""The packed pass in bfloat16 on a GPU: fla's kernels with document bounds, varlen attention, compiled pieces.

Each figure is a relative L2 distance. Transformers' own packing is measured beside it: it is off by 0.1 to 1.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from dflashctl_remote.target.families import why_not_walkable
from dflashctl_remote.target.packed import Walk, packed_forward
from dflashctl_remote.target.taps import TargetStates, batch_states

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(importlib.util.find_spec("fla") is None, reason="flash-linear-attention is not installed"),
    pytest.mark.filterwarnings("default"),
]

GPU = torch.device("cuda")
LENGTHS = (137, 5, 450, 64, 201)
NUM_ROWS = 1024
TAPS = (0, 2, 3)
TOLERANCE = 2e-2
"""Of four layers in bfloat16, whose own step is 4e-3."""
SMALL: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.05,
    "pad_token_id": 0,
    "eos_token_id": 2,
}
DELTA: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
}

FAMILIES: dict[str, Callable[[], Any]] = {
    "qwen3.5": lambda: Qwen3_5ForCausalLM(Qwen3_5TextConfig(**SMALL, **DELTA, head_dim=256)),
    "qwen3-next": lambda: Qwen3NextForCausalLM(Qwen3NextConfig(**SMALL, **DELTA, head_dim=256, num_experts=0)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=128)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL, head_dim=64)),
}


@dataclass(frozen=True)
class Row:
    input_ids_T: np.ndarray
    lengths: tuple[int, ...]


def documents(lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.integers(5, 1000, size=length) for length in lengths]


def packed(parts: list[np.ndarray]) -> Row:
    ids = np.concatenate([*parts, np.zeros(NUM_ROWS - sum(map(len, parts)))]).astype(np.int64)
    return Row(ids, tuple(len(part) for part in parts))


@pytest.fixture(scope="module", params=FAMILIES)
def decoder(request: pytest.FixtureRequest) -> nn.Module:
    """With decays slow enough that a state which is not zero at a document's start shows."""
    torch.manual_seed(0)
    decoder = FAMILIES[request.param]().get_decoder().eval().requires_grad_(False).to(GPU, torch.bfloat16)
    for name, parameter in decoder.named_parameters():
        if name.endswith("A_log"):
            nn.init.constant_(parameter, -3.0)
    assert why_not_walkable(decoder) is None
    return decoder


def run(decoder: nn.Module, parts: list[np.ndarray], *, is_compiled: bool = True) -> TargetStates:
    return packed_forward(Walk.of(decoder, is_compiled=is_compiled), packed(parts), TAPS, GPU)


def slices(states: TargetStates, parts: list[np.ndarray]) -> list[tuple[Tensor, Tensor]]:
    lengths = [len(part) for part in parts]
    split = (tensor[: sum(lengths)].split(lengths) for tensor in (states.taps_TF, states.final_TE))
    return list(zip(*split, strict=True))


@torch.no_grad()
def alone(decoder: nn.Module, part: np.ndarray) -> tuple[Tensor, Tensor]:
    taps_BTF, final_BTE = batch_states(decoder, torch.from_numpy(part)[None].to(GPU), TAPS, use_cache=False)
    return taps_BTF[0], final_BTE[0]


def distance(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want.double()).norm() / want.double().norm())


def test_each_document_is_as_transformers_gives_it_alone(decoder: nn.Module) -> None:
    parts = documents()
    for part, (taps, final) in zip(parts, slices(run(decoder, parts), parts), strict=True):
        expected_taps, expected_final = alone(decoder, part)
        assert distance(taps, expected_taps) < TOLERANCE
        assert distance(final, expected_final) < TOLERANCE


@torch.no_grad()
def test_transformers_own_packing_is_seen_by_this_measure(decoder: nn.Module) -> None:
    parts = documents()
    positions_1T = torch.cat([torch.arange(len(part)) for part in parts])[None].to(GPU)
    ids_1T = torch.from_numpy(np.concatenate(parts))[None].to(GPU)
    _, final_1TE = batch_states(decoder, ids_1T, (), position_ids=positions_1T, use_cache=False)
    leaks = final_1TE[0].split([len(part) for part in parts])
    distances = [distance(leak, alone(decoder, part)[1]) for leak, part in zip(leaks, parts, strict=True)]
    if decoder.config.model_type in ("qwen3_5_text", "qwen3_next"):
        assert max(distances) > 5 * TOLERANCE


def test_another_first_document_changes_no_bit_of_the_others(decoder: nn.Module) -> None:
    parts = documents()
    before = slices(run(decoder, parts), parts)
    parts[0] = documents(seed=1)[0]
    after = slices(run(decoder, parts), parts)
    assert not torch.equal(before[0][1], after[0][1])
    for old, new in zip(before[1:], after[1:], strict=True):
        assert torch.equal(old[0], new[0])
        assert torch.equal(old[1], new[1])


def test_compiled_pieces_give_what_the_plain_ones_give(decoder: nn.Module) -> None:
    parts = documents()
    compiled, plain = (run(decoder, parts, is_compiled=is_compiled) for is_compiled in (True, False))
    assert distance(compiled.taps_TF, plain.taps_TF) < TOLERANCE
    assert distance(compiled.final_TE, plain.final_TE) < TOLERANCE


def test_other_documents_compile_nothing_anew(decoder: nn.Module) -> None:
    run(decoder, documents())
    with torch._dynamo.config.patch(error_on_recompile=True):
        for lengths in ((1024,), (3, 70, 900), (10,) * 40):
            run(decoder, documents(lengths))


def test_padding_has_zero_states(decoder: nn.Module) -> None:
    states = run(decoder, documents())
    assert not states.taps_TF[sum(LENGTHS) :].any()
    assert not states.final_TE[sum(LENGTHS) :].any()


def test_the_states_can_be_saved_for_a_backward_pass(decoder: nn.Module) -> None:
    states = run(decoder, documents())
    weight = torch.zeros(8, states.taps_TF.shape[1], device=GPU, dtype=torch.bfloat16, requires_grad=True)
    nn.functional.linear(states.taps_TF, weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.isfinite().all()
