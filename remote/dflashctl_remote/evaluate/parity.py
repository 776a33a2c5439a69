"""The parity gate: at the same positions of the target's own text, does a drafter propose in free-running decoding
what the training path scores, and are the labels of training what the target says there?

Where not, the inputs are made by one wrong convention after another until one explains it (causes.py).
Axes: N anchors, K slots of a block, Q = N*K, R rows, A tokens of an answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dflashctl_remote.data.pack import PackedRow, pack
from dflashctl_remote.data.shards import Document
from dflashctl_remote.drafter.anchors import Anchors
from dflashctl_remote.drafter.masks import NO_DOCUMENT
from dflashctl_remote.drafter.model import Drafter, FrozenEnds
from dflashctl_remote.drafter.objective import (
    AttentionName,
    States,
    attend_by,
    block_ids,
    block_states,
    row_layout,
)
from dflashctl_remote.drafter.ops import step_ops
from dflashctl_remote.drafter.scored import to_device
from dflashctl_remote.drafter.step import DEFAULT_ANCHORS_PER_GROUP, group_size
from dflashctl_remote.losses.linear_ce import linear_argmax, linear_logits
from dflashctl_remote.target.load import Target
from dflashctl_remote.target.taps import TargetStates

CHUNK_ROWS = 1024


@dataclass(frozen=True)
class Text:
    """An answer as it came free-running, and the whole blocks that were proposed on the way."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    anchors: tuple[int, ...]
    """Indices into prompt and answer, rising."""
    drafts: tuple[tuple[int, ...], ...]
    """K - 1 tokens after each anchor."""

    @property
    def ids(self) -> tuple[int, ...]:
        return self.prompt + self.answer


class TrainingPath(Protocol):
    """What a trainer computes of a packed row, on the drafter's device."""

    def states(self, row: PackedRow) -> States: ...

    def blocks(self, row: PackedRow, states: States, anchors: Anchors) -> Tensor:
        """Final states of all blocks: [Q, D]."""


@dataclass(frozen=True)
class AsTrained:
    """All blocks of a row at once: the path of drafter/objective.py, for rows of any length."""

    drafter: Drafter
    ends: FrozenEnds
    target: Target
    attention: AttentionName

    def states(self, row: PackedRow) -> States:
        states = self.target.states(row, self.drafter.config.tap_layers)
        device = self.drafter.fc.weight.device
        return TargetStates(states.taps_TF.to(device), states.final_TE.to(device))

    def blocks(self, row: PackedRow, states: States, anchors: Anchors) -> Tensor:
        layout = row_layout(row, anchors, self.drafter.config.block_size, device=states.taps_TF.device)
        return block_states(self.drafter, self.ends, row, states.taps_TF, layout, attention=self.attention)


@dataclass(frozen=True)
class AsStepped(AsTrained):
    """The forward pass of drafter/step.py, its kernels and its groups of one shape: for rows of the trainer's shape."""

    anchors_per_group: int = DEFAULT_ANCHORS_PER_GROUP

    def blocks(self, row: PackedRow, states: States, anchors: Anchors) -> Tensor:
        drafter, size, device = self.drafter, self.drafter.config.block_size, states.taps_TF.device
        ops, dtype = step_ops(device), drafter.fc.weight.dtype
        per_group = group_size(len(anchors), self.anchors_per_group, size)
        whole = _padded(anchors, len(anchors) + -len(anchors) % per_group)
        layout = row_layout(row, whole, size, device=device)
        ids_NK = block_ids(drafter.config, to_device(row.input_ids_T[whole.indices_N], device))
        context_TD = drafter.context_states(states.taps_TF.to(dtype), ops)
        context = drafter.context_keys_values(context_TD, layout.context_positions_T, ops)
        out = []
        for first in range(0, len(whole), per_group):
            group = layout.blocks(first, first + per_group)
            block_QD = self.ends.embed(ids_NK[first : first + per_group].flatten()).to(dtype)
            attend = attend_by(self.attention, drafter.config, group)
            out.append(drafter(block_QD, group.block_positions_Q(), context, attend, ops))
        return torch.cat(out)[: len(anchors) * size]


@dataclass(frozen=True)
class Compared:
    """A text by the training path, beside what was decoded. All tensors on the CPU."""

    text: Text
    proposals_NK: Tensor
    """The training path's own, slots 1..K-1."""
    is_equal_NK: Tensor
    """Its draft is the arg-max of training too, or tied with it."""
    labels_A: Tensor
    """Of the answer's tokens, by the training path's final states."""
    is_label_equal_A: Tensor


def text_of(
    prompt: Sequence[int],
    answer: Sequence[int],
    accepted_per_step: Sequence[int],
    proposals_per_step: Sequence[Sequence[int]],
    *,
    block_size: int,
) -> Text:
    """From decoding (evaluate/decode.py). The last block of an answer, if shortened, is another block: left out."""
    anchors: list[int] = []
    drafts: list[tuple[int, ...]] = []
    at = len(prompt)
    for num_emitted, proposals in zip(accepted_per_step, proposals_per_step, strict=True):
        if len(proposals) == block_size - 1:
            anchors.append(at)
            drafts.append(tuple(proposals))
        at += num_emitted
    return Text(tuple(prompt), tuple(answer), tuple(anchors), tuple(drafts))


@torch.no_grad()
def compare_paths(
    path: TrainingPath,
    texts: Sequence[Text],
    head_VE: Tensor,
    *,
    tie: float,
    row_tokens: int | None = None,
    num_anchors: int | None = None,
) -> list[Compared]:
    """Each text by the training path.

    With `row_tokens` and `num_anchors` texts are packed into rows of the trainer's own shape, several in one; what
    does not fit (texts longer than a row, anchors beyond the last) is left out. `tie`: see `is_equal_or_tied`.
    """
    return [one for packed in _packed(texts, row_tokens, num_anchors) for one in _compare(path, packed, head_VE, tie)]


@torch.no_grad()
def is_equal_or_tied(states_RD: Tensor, head_VE: Tensor, tokens_R: Tensor, tie: float) -> Tensor:
    """Whether a token is the head's arg-max, or tied: its logit is no further below the best than `tie` of best - mean.

    bool [R], on the states' device.
    """
    out = []
    for states, tokens in zip(states_RD.split(CHUNK_ROWS), tokens_R.split(CHUNK_ROWS), strict=True):
        logits = linear_logits(states, head_VE)
        best = logits.amax(dim=-1)
        below = best - logits.gather(-1, tokens[:, None])[:, 0]
        out.append(below <= tie * (best - logits.mean(dim=-1)))
    return torch.cat(out) if out else torch.empty(0, dtype=torch.bool, device=states_RD.device)


@dataclass(frozen=True)
class _PackedTexts:
    row: PackedRow
    anchors: Anchors
    texts: tuple[Text, ...]
    """As far as their anchors are in the row."""


def _packed(texts: Sequence[Text], row_tokens: int | None, num_anchors: int | None) -> list[_PackedTexts]:
    rows: list[list[Text]] = []
    for text in texts:
        if not text.anchors or (row_tokens is not None and len(text.ids) > row_tokens):
            continue
        last = rows[-1] if rows else []
        has_room = row_tokens is not None and sum(len(t.ids) for t in [*last, text]) <= row_tokens
        if last and has_room and sum(len(t.anchors) for t in [*last, text]) <= (num_anchors or 0):
            last.append(text)
        else:
            cut = Text(text.prompt, text.answer, text.anchors[:num_anchors], text.drafts[:num_anchors])
            rows.append([cut])
    return [_pack_row(row, row_tokens, num_anchors) for row in rows]


def _pack_row(texts: Sequence[Text], row_tokens: int | None, num_anchors: int | None) -> _PackedTexts:
    documents = [Document(np.array(text.ids, np.int64), np.arange(len(text.ids)) >= len(text.prompt)) for text in texts]
    row = pack(documents, row_tokens or sum(len(text.ids) for text in texts))
    starts = np.cumsum([0, *(len(text.ids) for text in texts)])
    indices = np.concatenate([start + np.array(text.anchors) for start, text in zip(starts, texts, strict=False)])
    anchors = Anchors(indices, row.positions_T[indices], row.document_ids_T[indices], len(indices))
    return _PackedTexts(row, _padded(anchors, num_anchors or len(indices)), tuple(texts))


def _padded(anchors: Anchors, num: int) -> Anchors:
    """With anchors that match nothing, up to `num`."""
    none = np.zeros(num - len(anchors), dtype=np.int64)
    return Anchors(
        indices_N=np.concatenate((anchors.indices_N, none)),
        positions_N=np.concatenate((anchors.positions_N, none)),
        documents_N=np.concatenate((anchors.documents_N, none + NO_DOCUMENT)),
        num_real=anchors.num_real,
    )


def _compare(path: TrainingPath, packed: _PackedTexts, head_VE: Tensor, tie: float) -> list[Compared]:
    states = path.states(packed.row)
    blocks_QD = path.blocks(packed.row, states, packed.anchors)
    slots_NKD = blocks_QD.unflatten(0, (len(packed.anchors), -1))[:, 1:]
    out: list[Compared] = []
    start, first = 0, 0
    for text in packed.texts:
        drafts_NK = torch.tensor(text.drafts, device=blocks_QD.device)
        slots_RD = slots_NKD[first : first + len(text.anchors)].flatten(0, 1)
        at = slice(start + len(text.prompt) - 1, start + len(text.ids) - 1)
        answer_A = torch.tensor(text.answer, device=blocks_QD.device)
        final_AE = states.final_TE[at]
        out.append(
            Compared(
                text,
                linear_argmax(slots_RD, head_VE).view_as(drafts_NK).cpu(),
                is_equal_or_tied(slots_RD, head_VE, drafts_NK.flatten(), tie).view_as(drafts_NK).cpu(),
                linear_argmax(final_AE, head_VE).cpu(),
                is_equal_or_tied(final_AE, head_VE, answer_A, tie).cpu(),
            )
        )
        start += len(text.ids)
        first += len(text.anchors)
    return out
