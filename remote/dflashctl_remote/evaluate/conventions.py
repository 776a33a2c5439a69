"""How a drafter's inputs can be made: rightly, and in the ways that have gone wrong in practice.

One document at a time and by the plainest path, so that what training and drafting do can be held against it.
Axes: T tokens of a document, N anchors, K slots of a block, D = E width, F = taps*E. Layer -1 is the embedding.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dflashctl_remote.drafter.attention import by_document_attend
from dflashctl_remote.drafter.masks import Layout
from dflashctl_remote.drafter.model import Drafter, FrozenEnds
from dflashctl_remote.spec.drafter import DrafterConfig
from dflashctl_remote.spec.parity import Cause
from dflashctl_remote.target.load import Target
from dflashctl_remote.target.taps import batch_states

EMBEDDING = -1


@dataclass(frozen=True)
class Convention:
    cause: Cause | None
    """What is wrong if this is how it is done; None: nothing."""
    says: str
    masks: DrafterConfig
    """Whose causality and windows decide who sees whom."""
    tap_shift: int = 0
    """Tap t is read at layer t + tap_shift."""
    num_taps: int | None = None
    """Only the first so many are read, zeros stand for the others; None: all."""
    context_shift: int = 0
    """Added to the positions that context keys are turned by; those of blocks stay, and so does who sees whom."""
    num_seen_beyond: int = 0
    """Context tokens that a block sees from its anchor on (1: the anchor's own), or fewer than before it (-1)."""


def right(config: DrafterConfig) -> Convention:
    return Convention(None, "everything as it should be", config)


def wrong(config: DrafterConfig) -> tuple[Convention, ...]:
    """Every way that would be another for this drafter, the likelier ones first."""
    return (*_wrong_taps(config), *_wrong_positions(config), *_wrong_masks(config))


def layers_read(config: DrafterConfig) -> tuple[int, ...]:
    """Layers of the target that one convention or another reads, rising."""
    near = {tap + shift for tap in config.tap_layers for shift in (-1, 0, 1)}
    return tuple(sorted(layer for layer in near if EMBEDDING <= layer < config.num_target_layers))


@torch.no_grad()
def layer_states(target: Target, ids: Sequence[int], layers: Sequence[int]) -> tuple[dict[int, Tensor], Tensor]:
    """Outputs of these layers, each [T, E], and the state after the final norm [T, E], of one document alone."""
    ids_BT = torch.tensor([list(ids)], device=target.device)
    taps = [layer for layer in layers if layer != EMBEDDING]
    taps_BTF, final_BTE = batch_states(target.decoder, ids_BT, taps, use_cache=False)
    width = final_BTE.shape[-1]
    states = dict(zip(taps, taps_BTF[0].split(width, dim=-1) if taps else (), strict=True))
    if EMBEDDING in layers:
        states[EMBEDDING] = target.embed(ids_BT[0])
    return states, final_BTE[0]


@torch.no_grad()
def slots_under(
    convention: Convention,
    drafter: Drafter,
    ends: FrozenEnds,
    ids: Sequence[int],
    anchors: Sequence[int],
    states: Mapping[int, Tensor],
) -> Tensor:
    """Final states of the slots after each anchor: [N, K - 1, D].

    `anchors` are indices into the document, rising; `states` those of `layers_read`, on the drafter's device.
    """
    config = drafter.config
    dtype, device = drafter.fc.weight.dtype, drafter.fc.weight.device
    ids_T = torch.tensor(list(ids), device=device)
    positions_T = torch.arange(len(ids), device=device)
    anchors_N = torch.tensor(list(anchors), device=device)
    layout = Layout(
        context_positions_T=positions_T,
        context_documents_T=torch.zeros_like(positions_T),
        anchor_indices_N=anchors_N + convention.num_seen_beyond,
        anchor_positions_N=anchors_N,
        anchor_documents_N=torch.zeros_like(anchors_N),
        block_size=config.block_size,
    )
    context_TD = drafter.context_states(_taps(convention, config, states).to(dtype))
    context = drafter.context_keys_values(context_TD, positions_T + convention.context_shift)
    ids_NK = ids_T.new_full((len(anchors), config.block_size), config.mask_token_id)
    ids_NK[:, 0] = ids_T[anchors_N]
    block_QD = ends.embed(ids_NK.flatten()).to(dtype)
    attend = by_document_attend(convention.masks, layout)
    hidden_QD = drafter(block_QD, layout.block_positions_Q(), context, attend)
    return hidden_QD.unflatten(0, (-1, config.block_size))[:, 1:]


def _taps(convention: Convention, config: DrafterConfig, states: Mapping[int, Tensor]) -> Tensor:
    taps = [states[tap + convention.tap_shift] for tap in config.tap_layers]
    if convention.num_taps is not None:
        taps = [tap if i < convention.num_taps else torch.zeros_like(tap) for i, tap in enumerate(taps)]
    return torch.cat(taps, dim=-1)


def _wrong_taps(config: DrafterConfig) -> Iterator[Convention]:
    said = "tap t is the output of layer t - 1 (hidden_states[t] instead of hidden_states[t + 1])"
    yield Convention("tap offset", said, config, tap_shift=-1)
    if max(config.tap_layers) + 1 < config.num_target_layers:
        said = "tap t is the output of layer t + 1 (ids that count layers from 1 taken for ids from 0)"
        yield Convention("tap offset", said, config, tap_shift=1)
    most = len(config.tap_layers)
    for num in range(most - 1, 0, -1):
        yield Convention("tap count", f"only the first {num} of {most} taps reach fc", config, num_taps=num)


def _wrong_positions(config: DrafterConfig) -> Iterator[Convention]:
    said = "context positions count from {}, block positions from {}"
    yield Convention("positions", said.format(1, 0), config, context_shift=1)
    yield Convention("positions", said.format(0, 1), config, context_shift=-1)


def _wrong_masks(config: DrafterConfig) -> Iterator[Convention]:
    yield Convention("mask", "a block sees the context state of its own anchor", config, num_seen_beyond=1)
    yield Convention("mask", "a block misses the context state just before its anchor", config, num_seen_beyond=-1)
    yield from _wrong_causality(config)
    yield from _wrong_windows(config)


def _wrong_causality(config: DrafterConfig) -> Iterator[Convention]:
    seen = {_causality(config)}
    for is_causal, said in (
        (None, "sliding layers are causal inside a block and full ones are not (no is_causal)"),
        (True, "all layers are causal inside a block (is_causal true)"),
        (False, "no layer is causal inside a block (is_causal false)"),
    ):
        other = config.model_copy(update={"is_causal": is_causal})
        if _causality(other) not in seen:
            seen.add(_causality(other))
            yield Convention("causal flag", said, other)


def _causality(config: DrafterConfig) -> tuple[bool, ...]:
    return tuple(config.is_layer_causal(layer) for layer in range(config.num_layers))


def _wrong_windows(config: DrafterConfig) -> Iterator[Convention]:
    window = config.sliding_window
    if window is None:
        return
    yield Convention(
        "window", "sliding layers see the whole context", config.model_copy(update={"sliding_window": None})
    )
    for other in (window - 1, window + 1):
        if other > 0:
            masks = config.model_copy(update={"sliding_window": other})
            yield Convention("window", f"the window is {other} tokens instead of {window}", masks)
