"""A packed row in one pass: every document as transformers gives it alone, for all families that are walked."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from dflashctl_remote.target.families import why_not_walkable
from dflashctl_remote.target.packed import Walk, packed_forward
from dflashctl_remote.target.pointwise import Pieces, pieces
from dflashctl_remote.target.taps import TargetStates, batch_states

CPU = torch.device("cpu")
LENGTHS = (37, 5, 129)
TAPS = (0, 2, 3)
NUM_PADDING = 21
SMALL: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
    "pad_token_id": 0,
    "eos_token_id": 2,
}
DELTA: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
}
PARTIAL_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
MULTI_ROPE = PARTIAL_ROPE | {"mrope_section": [2, 1, 1], "mrope_interleaved": True}

EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}


def qwen3_5() -> Any:
    return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**SMALL, **DELTA, rope_parameters=MULTI_ROPE))


def qwen3_5_with_experts() -> Any:
    dense = {name: value for name, value in SMALL.items() if name != "intermediate_size"}
    return Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**dense, **DELTA, **EXPERTS, rope_parameters=MULTI_ROPE))


def qwen3_next(**changes: Any) -> Any:
    return Qwen3NextForCausalLM(Qwen3NextConfig(**SMALL, **DELTA, rope_parameters=PARTIAL_ROPE, **changes))


FAMILIES: dict[str, Callable[[], Any]] = {
    "qwen3.5": qwen3_5,
    "qwen3.5 with experts": qwen3_5_with_experts,
    "qwen3-next": lambda: qwen3_next(num_experts=0),
    "qwen3-next with experts": lambda: qwen3_next(**EXPERTS),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SMALL)),
    "qwen3 with biases": lambda: Qwen3ForCausalLM(Qwen3Config(**SMALL, attention_bias=True)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
}


@dataclass(frozen=True)
class Row:
    input_ids_T: np.ndarray
    lengths: tuple[int, ...]


def documents(seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.integers(5, 300, size=length) for length in LENGTHS]


def packed(parts: list[np.ndarray], num_padding: int = NUM_PADDING) -> Row:
    ids = np.concatenate([*parts, np.zeros(num_padding)]).astype(np.int64)
    return Row(ids, tuple(len(part) for part in parts))


def made(family: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Random, with decays slow enough that a state which is not zero at a document's start shows."""
    torch.manual_seed(0)
    decoder = FAMILIES[family]().get_decoder().eval().requires_grad_(False).to(dtype)
    for name, parameter in decoder.named_parameters():
        if name.endswith("A_log"):
            nn.init.constant_(parameter, -3.0)
        elif name.endswith(("norm.weight", "bias")):
            parameter.add_(0.3 * torch.randn_like(parameter))
    return decoder


@pytest.fixture(params=FAMILIES)
def decoder(request: pytest.FixtureRequest) -> nn.Module:
    return made(request.param)


def run(decoder: nn.Module, row: Row, tap_layers: tuple[int, ...] = TAPS) -> TargetStates:
    assert why_not_walkable(decoder) is None
    return packed_forward(Walk.of(decoder, is_compiled=False), row, tap_layers, CPU)


def slices(states: TargetStates, parts: list[np.ndarray]) -> list[tuple[Tensor, Tensor]]:
    lengths = [len(part) for part in parts]
    split = (tensor[: sum(lengths)].split(lengths) for tensor in (states.taps_TF, states.final_TE))
    return list(zip(*split, strict=True))


@torch.no_grad()
def alone(decoder: nn.Module, part: np.ndarray) -> tuple[Tensor, Tensor]:
    """By transformers itself, taps by hooks."""
    taps_BTF, final_BTE = batch_states(decoder, torch.from_numpy(part)[None], TAPS, use_cache=False)
    return taps_BTF[0], final_BTE[0]


def test_each_document_is_as_transformers_gives_it_alone(decoder: nn.Module) -> None:
    parts = documents()
    for part, (taps, final) in zip(parts, slices(run(decoder, packed(parts)), parts), strict=True):
        expected_taps, expected_final = alone(decoder, part)
        assert torch.allclose(taps, expected_taps, rtol=1e-4, atol=2e-5)
        assert torch.allclose(final, expected_final, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("family", ["qwen3.5", "qwen3-next", "qwen3"])
def test_in_float64_a_packed_document_equals_itself_alone(family: str) -> None:
    decoder, parts = made(family, torch.float64), documents()
    for part, (taps, final) in zip(parts, slices(run(decoder, packed(parts)), parts), strict=True):
        by_itself = run(decoder, packed([part], num_padding=0))
        # rotary tables are made in float32 whatever the model's dtype
        assert torch.allclose(taps, by_itself.taps_TF, rtol=0, atol=1e-11)
        assert torch.allclose(final, by_itself.final_TE, rtol=0, atol=1e-11)


def test_another_first_document_changes_no_bit_of_the_others(decoder: nn.Module) -> None:
    parts = documents()
    before = slices(run(decoder, packed(parts)), parts)
    parts[0] = documents(seed=1)[0]
    after = slices(run(decoder, packed(parts)), parts)
    assert not torch.equal(before[0][1], after[0][1])
    for old, new in zip(before[1:], after[1:], strict=True):
        assert torch.equal(old[0], new[0])
        assert torch.equal(old[1], new[1])


def test_another_last_document_changes_no_bit_of_the_others(decoder: nn.Module) -> None:
    parts = documents()
    before = slices(run(decoder, packed(parts)), parts)
    parts[-1] = documents(seed=1)[-1]
    after = slices(run(decoder, packed(parts)), parts)
    for old, new in zip(before[:-1], after[:-1], strict=True):
        assert torch.equal(old[0], new[0])
        assert torch.equal(old[1], new[1])


def test_without_taps_the_final_states_are_the_same(decoder: nn.Module) -> None:
    row = packed(documents())
    states = run(decoder, row, tap_layers=())
    assert states.taps_TF.shape == (len(row.input_ids_T), 0)
    assert torch.equal(states.final_TE, run(decoder, row).final_TE)


def test_taps_come_in_the_order_asked_for(decoder: nn.Module) -> None:
    row = packed(documents())
    forward, backward = run(decoder, row, (0, 2)).taps_TF, run(decoder, row, (2, 0)).taps_TF
    assert torch.equal(forward, backward.roll(64, dims=1))


def test_padding_has_zero_states(decoder: nn.Module) -> None:
    states = run(decoder, packed(documents()))
    assert not states.taps_TF[-NUM_PADDING:].any()
    assert not states.final_TE[-NUM_PADDING:].any()


def test_a_pass_leaves_the_weights_as_they_were(decoder: nn.Module) -> None:
    before = {name: parameter.clone() for name, parameter in decoder.named_parameters()}
    run(decoder, packed(documents()))
    assert all(torch.equal(parameter, before[name]) for name, parameter in decoder.named_parameters())


def test_the_states_can_be_saved_for_a_backward_pass(decoder: nn.Module) -> None:
    states = run(decoder, packed(documents()))
    weight = torch.zeros(8, states.taps_TF.shape[1], requires_grad=True)
    nn.functional.linear(states.taps_TF, weight).sum().backward()
    assert weight.grad is not None
    assert torch.allclose(weight.grad[0], states.taps_TF.sum(dim=0), rtol=1e-4, atol=1e-4)


def test_an_unknown_family_is_named() -> None:
    decoder = GemmaForCausalLM(GemmaConfig(**SMALL)).get_decoder()
    assert why_not_walkable(decoder) == "a target of type gemma is not known to the packed forward pass"


def test_attention_in_a_window_is_refused() -> None:
    windows = Qwen3Config(**SMALL, use_sliding_window=True, sliding_window=8, max_window_layers=2)
    reason = why_not_walkable(Qwen3ForCausalLM(windows).get_decoder())
    assert reason == "the attention of layer 2 is limited to a window"


def test_a_rotary_embedding_that_depends_on_the_length_is_refused() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    reason = why_not_walkable(LlamaForCausalLM(LlamaConfig(**SMALL, rope_parameters=rope)).get_decoder())
    assert reason == "the rotary embedding (dynamic) depends on the length of the text"


def test_a_layer_built_otherwise_is_refused() -> None:
    decoder = made("qwen3.5")
    del decoder.layers[2].linear_attn.in_proj_z
    reason = why_not_walkable(decoder)
    assert reason == "layer 2 has no in_proj_z, so it is built otherwise than those that are known"


@pytest.mark.parametrize("family", ["qwen3.5", "qwen3-next", "llama"])
def test_pieces_trace_whole_and_from_the_second_number_of_rows_on_for_any(family: str) -> None:
    """On a GPU they are compiled; here only traced, which is where that would fail."""
    decoder, parts = made(family), documents()
    plain = pieces(is_compiled=False)
    functions = {field.name: getattr(plain, field.name) for field in fields(plain) if field.name != "is_compiled"}
    traced = {name: torch.compile(piece, fullgraph=True, backend="eager") for name, piece in functions.items()}
    walk = replace(Walk.of(decoder, is_compiled=False), pieces=Pieces(**traced, is_compiled=True))
    torch._dynamo.reset()
    for row in (packed(parts), packed(parts[:2])):
        assert torch.equal(packed_forward(walk, row, TAPS, CPU).final_TE, run(decoder, row).final_TE)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for row in (packed(parts[::-1]), packed(parts[1:])):
            packed_forward(walk, row, TAPS, CPU)
