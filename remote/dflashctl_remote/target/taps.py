"""The target's hidden states, read by hooks: tapped layers and the final state, for a batch or for a packed row.

Not for decoding with a cache (cache.py). Axes: B sequences, T tokens, E target width, L taps, F = L*E.

Why a packed row is not one forward pass: transformers accepts restarting positions, cu_seq_lens and seq_idx for
the Gated DeltaNet families and ignores them, so that convolution and recurrent state of one document run on into
the next, and sdpa attends across. Here each document is its own right-padded sequence, which holds for any model. No
attention mask is needed for that: attention, convolution and recurrence are all causal, and the padding stands after
the tokens. Families that are known run in one pass instead (packed.py), and this is what that is tested against.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn


class Row(Protocol):
    """What is read of a packed row (data/pack.py): documents one after the other, then padding."""

    @property
    def input_ids_T(self) -> np.ndarray: ...
    @property
    def lengths(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class TargetStates:
    """States of a packed row; zeros at padding."""

    taps_TF: Tensor
    """Outputs of the tapped decoder layers, layer-major: [tap 0 | tap 1 | ...]."""
    final_TE: Tensor
    """After the target's own final norm: final_TE @ head_VE.T are its logits."""


def batch_states(
    decoder: nn.Module, ids_BT: Tensor, tap_layers: Sequence[int], **decoder_arguments: Any
) -> tuple[Tensor, Tensor]:
    """One forward pass without the head: (taps_BTF, final_BTE).

    Tap t is the output of decoder layer t, counted from 0. A hook reads it there: transformers' `hidden_states` has
    it at t+1, but for the last layer holds the state after the final norm instead.
    """
    with _tapped(decoder, tap_layers) as taps:
        output = decoder(input_ids=ids_BT, **decoder_arguments)
    final_BTE = output.last_hidden_state
    none_BT0 = final_BTE[..., :0]
    return torch.cat([none_BT0, *(taps[layer] for layer in tap_layers)], dim=-1), final_BTE


def packed_states(decoder: nn.Module, row: Row, tap_layers: Sequence[int], device: torch.device) -> TargetStates:
    """States of every document of the row as if it were alone, back in the row's order."""
    ids_T = torch.as_tensor(row.input_ids_T, dtype=torch.int64, device=device)
    starts = np.concatenate(([0], np.cumsum(row.lengths)))
    taps_TF: Tensor | None = None
    final_TE: Tensor | None = None
    for group in padded_groups(row.lengths, max_tokens=len(ids_T)):
        ids_BT = ids_T.new_zeros((len(group), max(row.lengths[d] for d in group)))
        for b, d in enumerate(group):
            ids_BT[b, : row.lengths[d]] = ids_T[starts[d] : starts[d + 1]]
        taps_BTF, final_BTE = batch_states(decoder, ids_BT, tap_layers, use_cache=False)
        if taps_TF is None or final_TE is None:
            taps_TF = taps_BTF.new_zeros((len(ids_T), taps_BTF.shape[-1]))
            final_TE = final_BTE.new_zeros((len(ids_T), final_BTE.shape[-1]))
        for b, d in enumerate(group):
            taps_TF[starts[d] : starts[d + 1]] = taps_BTF[b, : row.lengths[d]]
            final_TE[starts[d] : starts[d + 1]] = final_BTE[b, : row.lengths[d]]
    assert taps_TF is not None and final_TE is not None, "a packed row holds at least one document"
    return TargetStates(taps_TF, final_TE)


def padded_groups(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Documents that run as one batch: none shorter than half the longest, at most `max_tokens` with padding.

    So at least half of what is computed is tokens, whatever the mix of long and short documents.
    """
    groups: list[list[int]] = []
    longest = 0
    for d in sorted(range(len(lengths)), key=lambda d: (-lengths[d], d)):
        if groups and 2 * lengths[d] >= longest and (len(groups[-1]) + 1) * longest <= max_tokens:
            groups[-1].append(d)
        else:
            groups.append([d])
            longest = lengths[d]
    return groups


@contextmanager
def _tapped(decoder: nn.Module, tap_layers: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """While open, forward passes of `decoder` in this thread leave the outputs of the tapped layers in the dict.

    Others may run the same decoder meanwhile: a run's target stages do while it validates.
    """
    taps: dict[int, Tensor] = {}
    thread = threading.get_ident()

    def keep(layer: int) -> Any:
        def hook(module: nn.Module, arguments: Any, output: Any) -> None:
            if threading.get_ident() == thread:
                taps[layer] = output[0] if isinstance(output, tuple) else output

        return hook

    layers: Any = decoder.layers
    handles = [layers[layer].register_forward_hook(keep(layer)) for layer in dict.fromkeys(tap_layers)]
    try:
        yield taps
    finally:
        for handle in handles:
            handle.remove()
