import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import LinearAttentionLayer

from dflashctl_remote.target.load import Target
from dflashctl_remote.target.taps import TargetStates, batch_states, packed_states, padded_groups

ALL_TAPS = (0, 1, 2, 3)
LENGTHS = (37, 5, 70, 1, 64, 40)


@dataclass(frozen=True)
class Row:
    input_ids_T: np.ndarray
    lengths: tuple[int, ...]


def documents(seed: int = 0, lengths: tuple[int, ...] = LENGTHS) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.integers(5, 300, size=length) for length in lengths]


def packed(parts: list[np.ndarray], num_padding: int = 23, padding: int = 0) -> Row:
    ids = np.concatenate([*parts, np.full(num_padding, padding)]).astype(np.int64)
    return Row(ids, tuple(len(part) for part in parts))


def alone(target: Target, document: np.ndarray) -> tuple[Tensor, Tensor]:
    """Taps and final state by transformers' own output_hidden_states; the last tap by its norm, see the test."""
    with torch.no_grad():
        output = target.model(input_ids=torch.from_numpy(document)[None], use_cache=False, output_hidden_states=True)
    return torch.cat([state[0] for state in output.hidden_states[1:4]], dim=-1), output.hidden_states[4][0]


StatesOf = Callable[[Target, Row, tuple[int, ...]], TargetStates]


@pytest.fixture(params=["one pass", "padded"])
def states_of(request: pytest.FixtureRequest) -> StatesOf:
    """Both ways to the same states; the second is that of families which the first does not know."""

    def padded(target: Target, row: Row, tap_layers: tuple[int, ...]) -> TargetStates:
        with torch.no_grad():
            return packed_states(target.decoder, row, tap_layers, target.device)

    return padded if request.param == "padded" else Target.states


def test_states_of_a_packed_row_equal_those_of_each_document_alone(target: Target, states_of: StatesOf) -> None:
    parts = documents()
    states = states_of(target, packed(parts), ALL_TAPS)
    start = 0
    for part in parts:
        taps_TF, final_TE = alone(target, part)
        end = start + len(part)
        assert torch.allclose(states.taps_TF[start:end, : 3 * 64], taps_TF, rtol=0, atol=1e-5)
        assert torch.allclose(states.final_TE[start:end], final_TE, rtol=0, atol=1e-5)
        start = end


def test_a_tap_of_the_last_layer_is_read_before_the_final_norm(target: Target, states_of: StatesOf) -> None:
    states = states_of(target, packed(documents()[:1], num_padding=0), (3,))
    normed = target.decoder.norm(states.taps_TF)
    assert torch.allclose(normed, states.final_TE, rtol=0, atol=1e-6)
    assert not torch.allclose(states.taps_TF, states.final_TE, rtol=0, atol=1e-2)


def test_the_final_states_give_the_logits_of_the_target(target: Target, states_of: StatesOf) -> None:
    part = documents()[0]
    states = states_of(target, packed([part]), ())
    with torch.no_grad():
        logits = target.model(input_ids=torch.from_numpy(part)[None], use_cache=False).logits[0]
    assert torch.allclose(target.logits(states.final_TE[: len(part)]), logits, rtol=0, atol=1e-5)


def test_taps_stand_in_the_order_asked_for(target: Target, states_of: StatesOf) -> None:
    row = packed(documents())
    both, one, two = (states_of(target, row, taps).taps_TF for taps in ((1, 2), (1,), (2,)))
    assert torch.equal(both, torch.cat([one, two], dim=-1))


def test_packing_order_changes_no_state(target: Target, states_of: StatesOf) -> None:
    parts = documents()
    order = [3, 0, 5, 2, 1, 4]
    plain = states_of(target, packed(parts), ALL_TAPS)
    shuffled = states_of(target, packed([parts[i] for i in order]), ALL_TAPS)
    starts = np.concatenate(([0], np.cumsum([len(part) for part in parts])))
    start = 0
    for i in order:
        end = start + len(parts[i])
        for ours, theirs in ((shuffled.taps_TF, plain.taps_TF), (shuffled.final_TE, plain.final_TE)):
            assert torch.allclose(ours[start:end], theirs[starts[i] : starts[i + 1]], rtol=0, atol=1e-6)
        start = end


def test_contents_of_the_padding_change_no_state(target: Target, states_of: StatesOf) -> None:
    parts = documents()
    zeros = states_of(target, packed(parts, padding=0), ALL_TAPS)
    others = states_of(target, packed(parts, padding=123), ALL_TAPS)
    assert torch.equal(zeros.taps_TF, others.taps_TF)
    assert torch.equal(zeros.final_TE, others.final_TE)


def test_padding_has_zero_states(target: Target, states_of: StatesOf) -> None:
    states = states_of(target, packed(documents(), num_padding=23), ALL_TAPS)
    assert not states.taps_TF[-23:].any()
    assert not states.final_TE[-23:].any()


def test_states_carry_no_gradient(target: Target, states_of: StatesOf) -> None:
    states = states_of(target, packed(documents()), ALL_TAPS)
    assert not states.taps_TF.requires_grad
    assert not states.taps_TF.is_inference()


def test_plain_packing_through_transformers_leaks_between_documents(hybrid_target: Target, states_of: StatesOf) -> None:
    """Why states() is none of transformers' own: every hint that it accepts is ignored."""
    first, second = documents(lengths=(137, 250))
    ids_BT = torch.from_numpy(np.concatenate([first, second]))[None]
    positions = torch.cat([torch.arange(137), torch.arange(250)])[None]
    ends = torch.tensor([0, 137, 387], dtype=torch.int32)
    with torch.no_grad():
        leaking = hybrid_target.decoder(
            input_ids=ids_BT,
            position_ids=positions,
            use_cache=False,
            cu_seq_lens_q=ends,
            cu_seq_lens_k=ends,
            seq_idx=torch.tensor([[0] * 137 + [1] * 250], dtype=torch.int32),
        ).last_hidden_state[0]
    _, final_first = alone(hybrid_target, first)
    _, final_second = alone(hybrid_target, second)
    assert torch.allclose(leaking[:137], final_first, rtol=0, atol=1e-5)
    assert (leaking[137:] - final_second).abs().max() > 0.1
    ours = states_of(hybrid_target, packed([first, second]), ()).final_TE
    assert torch.allclose(ours[137:387], final_second, rtol=0, atol=1e-5)


def state_at_end(target: Target, layer: int, hidden_TE: Tensor) -> tuple[Tensor, Tensor]:
    """Recurrent and convolution state of one linear layer after the inputs given."""
    cache = DynamicCache(config=target.model.config)
    with torch.no_grad():
        target.decoder.layers[layer].linear_attn(hidden_states=hidden_TE[None], cache_params=cache)
    return cache.layers[layer].recurrent_states[0], cache.layers[layer].conv_states[0]


def test_recurrent_and_convolution_state_at_document_ends_equal_those_alone(hybrid_target: Target) -> None:
    """In a padded batch the cache's state is that after the padding, so it is taken from what went into each linear
    layer of the batch, cut at the document's end."""
    parts = documents()
    ids_BT = torch.zeros((len(parts), max(LENGTHS)), dtype=torch.int64)
    for b, part in enumerate(parts):
        ids_BT[b, : len(part)] = torch.from_numpy(part)
    inputs: dict[int, Tensor] = {}
    handles = [
        layer.linear_attn.register_forward_pre_hook(
            lambda module, arguments, keywords, index=index: inputs.update({index: keywords["hidden_states"]}),
            with_kwargs=True,
        )
        for index, layer in enumerate(hybrid_target.decoder.layers)
        if hasattr(layer, "linear_attn")
    ]
    batch_states(hybrid_target.decoder, ids_BT, (), use_cache=False)
    for handle in handles:
        handle.remove()
    assert len(inputs) == 3
    for b, part in enumerate(parts):
        cache = DynamicCache(config=hybrid_target.model.config)
        with torch.no_grad():
            hybrid_target.decoder(input_ids=torch.from_numpy(part)[None], past_key_values=cache, use_cache=True)
        for index, hidden_BTE in inputs.items():
            recurrent, convolution = state_at_end(hybrid_target, index, hidden_BTE[b, : len(part)])
            layer = cache.layers[index]
            assert isinstance(layer, LinearAttentionLayer)
            assert torch.allclose(recurrent, layer.recurrent_states[0], rtol=0, atol=1e-5)
            assert torch.allclose(convolution, layer.conv_states[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("lengths", "groups"),
    [
        ((4, 4, 4), [[0, 1, 2]]),
        ((8, 3, 4, 8), [[0, 3], [2, 1]]),
        ((2,), [[0]]),
        ((16, 1, 1, 1), [[0], [1, 2, 3]]),
    ],
)
def test_documents_of_like_length_share_a_batch(lengths: tuple[int, ...], groups: list[list[int]]) -> None:
    assert padded_groups(lengths, max_tokens=16) == groups


def test_a_group_stays_within_the_tokens_of_the_row() -> None:
    lengths = (100, 60, 60, 60, 10, 10, 9, 8, 7)
    groups = padded_groups(lengths, max_tokens=320)
    assert sorted(d for group in groups for d in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) * max(lengths[d] for d in group) <= 320


@torch.no_grad()
def test_taps_are_those_of_the_own_thread_while_another_runs_the_same_decoder(target: Target) -> None:
    own, other = torch.arange(10, 22)[None], torch.arange(50, 70)[None]
    alone, _ = batch_states(target.decoder, own, (0, 3), use_cache=False)
    main = threading.get_ident()

    def meanwhile(module: object, arguments: object) -> None:
        if threading.get_ident() == main:
            thread = threading.Thread(target=lambda: batch_states(target.decoder, other, (0,), use_cache=False))
            thread.start()
            thread.join()

    handle = target.decoder.layers[1].register_forward_pre_hook(meanwhile)
    taps, _ = batch_states(target.decoder, own, (0, 3), use_cache=False)
    handle.remove()
    assert torch.equal(taps, alone)
