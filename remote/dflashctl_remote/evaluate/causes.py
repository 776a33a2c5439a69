"""Naming why drafting and training disagree: the inputs are made by one wrong convention after another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import NamedTuple

import torch
from torch import Tensor

from dflashctl_remote.drafter.model import Drafter, FrozenEnds
from dflashctl_remote.evaluate.conventions import (
    Convention,
    layer_states,
    layers_read,
    right,
    slots_under,
    wrong,
)
from dflashctl_remote.evaluate.decode import num_leading_matches
from dflashctl_remote.evaluate.parity import Compared, Text, TrainingPath, compare_paths, is_equal_or_tied
from dflashctl_remote.evaluate.template import TemplateFinding
from dflashctl_remote.losses.linear_ce import linear_argmax
from dflashctl_remote.spec.parity import Cause, Parity
from dflashctl_remote.target.load import Target

NUM_NAMING_TEXTS = 4
"""Looked at to name a cause."""
MIN_JUMP = 0.1
"""A convention that explains less is not named."""
_TIES = {torch.float32: 1e-3, torch.bfloat16: 3e-2}
_ENOUGH = {torch.float32: 1.0, torch.bfloat16: 0.97}
"""Share that must agree: in bfloat16 the states of both ways differ by their rounding before the head sees them."""


class Found(NamedTuple):
    cause: Cause
    says: str


@dataclass(frozen=True)
class Gate:
    """What the gate works with. All but the target lives on the drafter's device."""

    drafter: Drafter
    ends: FrozenEnds
    target: Target
    path: TrainingPath
    row_tokens: int | None = None
    num_anchors: int | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The coarser of the two."""
        return torch.bfloat16 if torch.bfloat16 in (self.target.dtype, self.drafter.fc.weight.dtype) else torch.float32

    @property
    def tie(self) -> float:
        return _TIES[self.dtype]

    @property
    def enough(self) -> float:
        return _ENOUGH[self.dtype]


def check_parity(
    gate: Gate, texts: Sequence[Text], *, template: TemplateFinding | None = None, tries_conventions: bool = False
) -> Parity:
    """The verdict on free-running texts.

    With `tries_conventions` a drafter whose both ways agree is asked too whether it meets the target's text better
    with its inputs made another way, as one does that was trained so.
    """
    compared = compare_paths(
        gate.path,
        texts,
        gate.ends.head_VE,
        tie=gate.tie,
        row_tokens=gate.row_tokens,
        num_anchors=gate.num_anchors,
    )
    if not compared:
        return Parity(verdict="not checked", says="no whole block was proposed in an answer that fits a row")
    num_slots = sum(one.is_equal_NK.numel() for one in compared)
    num_slots_equal = sum(int(one.is_equal_NK.sum()) for one in compared)
    num_labels = sum(one.is_label_equal_A.numel() for one in compared)
    num_labels_equal = sum(int(one.is_label_equal_A.sum()) for one in compared)
    found: list[Found] = []
    if num_labels_equal < gate.enough * num_labels:
        found.append(_name_labels(gate, compared))
    if num_slots_equal < gate.enough * num_slots:
        found.append(_name_proposals(gate, compared))
    if template is not None and not template.is_alike:
        found.append(Found("chat template", template.says))
    is_otherwise = False
    if not found and tries_conventions:
        better = better_convention(gate, texts)
        is_otherwise = better is not None
        found = [better] if better is not None else []
    return Parity(
        verdict="trained otherwise" if is_otherwise else "differ" if found else "agree",
        num_slots=num_slots,
        num_slots_equal=num_slots_equal,
        num_labels=num_labels,
        num_labels_equal=num_labels_equal,
        cause=found[0].cause if found else None,
        says="; ".join(one.says for one in found),
    )


@torch.no_grad()
def better_convention(gate: Gate, texts: Sequence[Text]) -> Found | None:
    """A wrong convention under which more leading drafts are the target's own text, beyond chance, by text.

    One that lets a block see its anchor's state shows it the answer, and counts only if it gives half as much again.
    """
    usable = [text for text in texts if text.anchors]
    if len(usable) < NUM_NAMING_TEXTS:
        return None
    conventions = (right(gate.drafter.config), *wrong(gate.drafter.config))
    matches = [_matches(gate, text, conventions) for text in usable]
    base = mean(row[0] for row in matches)
    best: tuple[float, Convention] | None = None
    for index, convention in enumerate(conventions[1:], start=1):
        gains = [row[index] - row[0] for row in matches]
        error = stdev(gains) / len(gains) ** 0.5
        least = 0.5 * (1 + base) if convention.num_seen_beyond > 0 else max(0.1, 4 * error)
        if mean(gains) > least and (best is None or mean(gains) > best[0]):
            best = (mean(gains), convention)
    if best is None or best[1].cause is None:
        return None
    gain, convention = best
    return Found(
        convention.cause or "unknown",
        f"{1 + base:.2f} tokens a step teacher-forced on the target's text, {1 + base + gain:.2f} if "
        f"{convention.says}: it was probably trained so",
    )


def _matches(gate: Gate, text: Text, conventions: Sequence[Convention]) -> list[float]:
    """Mean of the leading drafts that are the text, under each."""
    states = _states_of(gate, text)
    ids, out = text.ids, []
    for convention in conventions:
        slots_NKD = slots_under(convention, gate.drafter, gate.ends, ids, text.anchors, states)
        drafts = linear_argmax(slots_NKD.flatten(0, 1), gate.ends.head_VE).view(slots_NKD.shape[:2]).tolist()
        out.append(mean(num_leading_matches(d, ids[at + 1 :]) for at, d in zip(text.anchors, drafts, strict=True)))
    return out


def _name_proposals(gate: Gate, compared: Sequence[Compared]) -> Found:
    some = _worst(compared, lambda one: one.is_equal_NK)
    sides = {
        "free-running decoding": [torch.tensor(one.text.drafts) for one in some],
        "the training path": [one.proposals_NK for one in some],
    }
    states = [_states_of(gate, one.text) for one in some]

    def share(convention: Convention, tokens: Sequence[Tensor]) -> float:
        equal = [
            _is_equal(gate, slots_under(convention, gate.drafter, gate.ends, one.text.ids, one.text.anchors, seen), t)
            for one, seen, t in zip(some, states, tokens, strict=True)
        ]
        return float(torch.cat(equal).float().mean())

    as_right = {side: share(right(gate.drafter.config), tokens) for side, tokens in sides.items()}
    odd = min(as_right, key=lambda side: as_right[side])
    before = as_right[odd]
    shares = [(share(convention, sides[odd]), convention) for convention in wrong(gate.drafter.config)]
    after, nearest = max(shares, key=lambda pair: pair[0])
    if after < before + MIN_JUMP and after < gate.enough:
        return Found(
            "unknown", f"{odd} is the odd one ({before:.0%} as it should be), and no known mistake explains it"
        )
    word = "is explained" if after >= gate.enough else "comes nearest"
    says = f"{odd} {word} if {nearest.says}: {after:.1%} of its proposals agree then, {before:.1%} as it should be"
    return Found(nearest.cause or "unknown", says)


def _name_labels(gate: Gate, compared: Sequence[Compared]) -> Found:
    """Which state of the target gives the labels that the training path has."""
    some = _worst(compared, lambda one: one.is_label_equal_A)
    shares: dict[str, list[Tensor]] = {}
    for one in some:
        num_layers = gate.target.shape.num_layers
        states, final_TE = layer_states(gate.target, one.text.ids, range(num_layers))
        norm = getattr(gate.target.decoder, "norm", None)
        first, num = len(one.text.prompt) - 1, len(one.text.answer)

        def add(said: str, at_AE: Tensor, labels_A: Tensor) -> None:
            equal = is_equal_or_tied(at_AE, gate.target.head_VE, labels_A.to(at_AE.device), gate.tie)
            shares.setdefault(said, []).append(equal.cpu())

        for layer in reversed(range(num_layers)):
            at_AE = states[layer][first : first + num]
            add(f"the output of layer {layer} without the final norm", at_AE, one.labels_A)
            if norm is not None and layer < num_layers - 1:
                add(f"the output of layer {layer} through the final norm", norm(at_AE), one.labels_A)
        add("the final state one position too late", final_TE[first + 1 : first + num], one.labels_A[: num - 1])
        if first > 0:
            add("the final state one position too early", final_TE[first - 1 : first - 1 + num], one.labels_A)
    ranked = {said: float(torch.cat(equal).float().mean()) for said, equal in shares.items()}
    said = max(ranked, key=lambda one: ranked[one])
    before = float(torch.cat([one.is_label_equal_A for one in some]).float().mean())
    if ranked[said] < max(MIN_JUMP, before):
        return Found(
            "unknown", f"{1 - before:.1%} of the labels are not what the target says, and no state explains them"
        )
    return Found(
        "label layer",
        f"labels are the arg-max of {said} ({ranked[said]:.1%} of them), not of the final state ({before:.1%})",
    )


def _worst(compared: Sequence[Compared], of: Callable[[Compared], Tensor]) -> list[Compared]:
    return sorted(compared, key=lambda one: float(of(one).float().mean()))[:NUM_NAMING_TEXTS]


def _states_of(gate: Gate, text: Text) -> dict[int, Tensor]:
    device = gate.drafter.fc.weight.device
    states, _ = layer_states(gate.target, text.ids, layers_read(gate.drafter.config))
    return {layer: state.to(device) for layer, state in states.items()}


def _is_equal(gate: Gate, slots_NKD: Tensor, tokens_NK: Tensor) -> Tensor:
    tokens_R = tokens_NK.flatten().to(slots_NKD.device)
    return is_equal_or_tied(slots_NKD.flatten(0, 1), gate.ends.head_VE, tokens_R, gate.tie).cpu()
