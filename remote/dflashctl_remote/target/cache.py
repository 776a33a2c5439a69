"""Decoding one sequence with a cache that can take back tokens, for attention-only and for hybrid targets.

Axes: K tokens of a block, E target width, L taps, F = L*E, V vocabulary.

transformers' own `crop` shortens keys, values and convolution inputs, and leaves the recurrent state of a Gated
DeltaNet layer as it is after the rejected tokens, without a word. Here the arguments of the recurrence are recorded
while a block is verified, the state before the block among them, and `commit` runs the recurrence again over the
accepted tokens alone: no projections, no attention, no MLP. Measured on the embedded target (block 8, one thread of
an AMD EPYC, 2026-11-30): verify 7.2 ms; taking back by that 0.4-1.2 ms, by running the linear layers again
1.9-4.5 ms, by a whole forward pass 3.9-7.4 ms.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import (
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
)

from dflashctl_remote.spec.errors import BadInput
from dflashctl_remote.target.load import Target
from dflashctl_remote.target.taps import batch_states

RULES = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")
"""What the Gated DeltaNet layers of transformers call, fla's kernels behind them where it is installed."""

_PATCHING = threading.RLock()


@dataclass(frozen=True)
class Pass:
    """What one forward pass gives."""

    logits_KV: Tensor
    """Of every token of a block; of the last token alone after a prefill (K = 1)."""
    taps_KF: Tensor
    """Of every token that was passed in."""


@dataclass(frozen=True)
class _RuleCall:
    """Arguments of one layer's recurrence over a block; the token axis is 1."""

    token_arguments: tuple[Tensor, ...]
    """query, key, value"""
    token_keywords: dict[str, Tensor]
    """g, beta"""
    initial_state: Tensor
    keywords: dict[str, Any]


class RollbackCache:
    """prefill(prompt), then any number of verify(block) + commit(num accepted).

    Raises BadInput for a target whose cache holds other layers than attention and Gated DeltaNet.
    """

    def __init__(self, target: Target, tap_layers: Sequence[int]) -> None:
        self._target = target
        self._tap_layers = tuple(tap_layers)
        self._cache = DynamicCache(config=target.model.config)
        self._cache.activate_past_recording()
        self._linear_layers = _linear_layers(target, self._cache)
        self._rule_calls: dict[int, _RuleCall] = {}
        self._num_pending = 0
        self.num_tokens = 0
        """Committed so far."""

    @torch.no_grad()
    def prefill(self, prompt_ids: Sequence[int]) -> Pass:
        """Run the prompt, all of it committed; logits of its last token."""
        assert self.num_tokens == 0, "a cache holds one sequence"
        assert len(prompt_ids) > 0
        taps_KF, final_KE = self._forward(prompt_ids)
        self._cache.crop(0)
        self.num_tokens = len(prompt_ids)
        return Pass(self._target.logits(final_KE[-1:]), taps_KF)

    @torch.no_grad()
    def verify(self, block: Sequence[int]) -> Pass:
        """Run a block after what is committed; `commit` must follow."""
        assert self.num_tokens > 0, "prefill() comes first"
        assert self._num_pending == 0, "commit() comes between two blocks"
        assert len(block) > 0
        with _recorded_rules(self._target, self._linear_layers) as self._rule_calls:
            taps_KF, final_KE = self._forward(block)
        self._num_pending = len(block)
        return Pass(self._target.logits(final_KE), taps_KF)

    @torch.no_grad()
    def commit(self, num_tokens: int) -> None:
        """Keep the first so many tokens of the verified block; the cache is then as if the others never came."""
        assert 0 < num_tokens <= self._num_pending
        num_rejected = self._num_pending - num_tokens
        self._cache.crop(-num_rejected)
        if num_rejected:
            for layer, call in self._rule_calls.items():
                rule = getattr(_modeling_module(self._target, layer), RULES[1])
                self._cache.layers[layer].recurrent_states[0].copy_(_state_after(rule, call, num_tokens))
        self._rule_calls = {}
        self._num_pending = 0
        self.num_tokens += num_tokens

    def _forward(self, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        ids_BT = torch.tensor([list(ids)], device=self._target.device)
        taps_BTF, final_BTE = batch_states(
            self._target.decoder, ids_BT, self._tap_layers, past_key_values=self._cache, use_cache=True
        )
        return taps_BTF[0], final_BTE[0]


def _linear_layers(target: Target, cache: DynamicCache) -> tuple[int, ...]:
    """Indices of the Gated DeltaNet layers; refuses layers that could not be taken back."""
    linear = []
    for index, layer in enumerate(cache.layers):
        if type(layer) is LinearAttentionLayer and hasattr(_modeling_module(target, index), RULES[1]):
            linear.append(index)
        elif type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            raise BadInput(
                f"layer {index} of the target keeps its past in a {type(layer).__name__}, and speculative decoding "
                "can take back tokens only from attention and Gated DeltaNet layers"
            )
    return tuple(linear)


def _modeling_module(target: Target, layer: int) -> Any:
    return sys.modules[type(target.decoder.layers[layer]).__module__]


@contextmanager
def _recorded_rules(target: Target, layers: Sequence[int]) -> Iterator[dict[int, _RuleCall]]:
    """While open, each Gated DeltaNet layer that this thread runs leaves its recurrence's arguments in the dict.

    The functions are names of transformers' modeling module, so they are replaced there and put back. The lock keeps
    two caches from putting back each other's; other threads' forward passes are let through unrecorded.
    """
    calls: dict[int, _RuleCall] = {}
    if not layers:
        yield calls
        return
    module = _modeling_module(target, layers[0])
    thread = threading.get_ident()
    remaining = iter(layers)

    def recording(rule: Callable[..., Any]) -> Callable[..., Any]:
        def run(query: Tensor, key: Tensor, value: Tensor, **keywords: Any) -> Any:
            if threading.get_ident() == thread:
                calls[next(remaining)] = _recorded(query, key, value, dict(keywords))
            return rule(query, key, value, **keywords)

        return run

    with _PATCHING:
        originals = {name: getattr(module, name) for name in RULES}
        for name, rule in originals.items():
            setattr(module, name, recording(rule))
        try:
            yield calls
        finally:
            for name, rule in originals.items():
                setattr(module, name, rule)
    assert len(calls) == len(layers), f"{len(layers)} Gated DeltaNet layers ran, {len(calls)} were recorded"


def _recorded(query: Tensor, key: Tensor, value: Tensor, keywords: dict[str, Any]) -> _RuleCall:
    # The cache overwrites this state in place after the block.
    initial_state = keywords.pop("initial_state").clone()
    token_keywords = {name: keywords.pop(name) for name in ("g", "beta")}
    return _RuleCall((query, key, value), token_keywords, initial_state, keywords)


def _state_after(rule: Callable[..., Any], call: _RuleCall, num_tokens: int) -> Tensor:
    """The recurrent state after the first so many tokens of a recorded block."""
    _, state = rule(
        *(tensor[:, :num_tokens] for tensor in call.token_arguments),
        **{name: tensor[:, :num_tokens] for name, tensor in call.token_keywords.items()},
        initial_state=call.initial_state,
        **call.keywords,
    )
    return state
