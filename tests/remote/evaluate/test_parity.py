"""Each cause is planted on one side, and has to be named; the target itself is never wrong."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from dflashctl_remote.data.pack import PackedRow
from dflashctl_remote.drafter.anchors import Anchors
from dflashctl_remote.drafter.attention import by_document_attend
from dflashctl_remote.drafter.model import Drafter
from dflashctl_remote.drafter.objective import AttentionName, drafter_loss, row_layout
from dflashctl_remote.drafter.session import DraftSession
from dflashctl_remote.evaluate.causes import Gate, better_convention, check_parity
from dflashctl_remote.evaluate.decode import speculative_greedy
from dflashctl_remote.evaluate.parity import AsStepped, AsTrained, Text, TrainingPath, text_of
from dflashctl_remote.evaluate.template import TemplateFinding
from dflashctl_remote.spec.drafter import DrafterConfig
from dflashctl_remote.spec.parity import Parity
from dflashctl_remote.target.load import Target
from dflashctl_remote.target.taps import TargetStates

WIDTH, BLOCK, TAPS, WINDOW = 64, 4, (0, 2), 6
PROMPTS = tuple(tuple(range(start, start + 13)) for start in (10, 40))
MANY_PROMPTS = tuple(tuple(range(start, start + 13)) for start in (10, 40, 70, 100, 130))


def make_drafter(**changes: object) -> Drafter:
    """A causal sliding layer and a bidirectional full one; weights that are heard."""
    config = DrafterConfig.model_validate(
        {
            "hidden_size": WIDTH,
            "num_layers": 2,
            "num_heads": 4,
            "num_kv_heads": 2,
            "head_dim": 16,
            "intermediate_size": 96,
            "vocab_size": 300,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e4,
            "max_position_embeddings": 512,
            "layer_types": ("sliding_attention", "full_attention"),
            "sliding_window": WINDOW,
            "is_causal": None,
            "block_size": BLOCK,
            "mask_token_id": 3,
            "tap_layers": TAPS,
            "num_target_layers": 4,
            "initializer_range": 0.3,
            **changes,
        }
    )
    drafter = Drafter(config)
    drafter.init_weights(seed=3)
    return drafter


@pytest.fixture
def drafter() -> Drafter:
    return make_drafter()


def decoded(
    target: Target,
    session: DraftSession,
    *,
    taps: tuple[int, ...] = TAPS,
    prompts: tuple[tuple[int, ...], ...] = PROMPTS,
) -> list[Text]:
    texts = []
    for prompt in prompts:
        out = speculative_greedy(
            target, session, prompt, tap_layers=taps, block_size=BLOCK, max_new_tokens=24, eos_token_ids=()
        )
        texts.append(text_of(prompt, out.tokens, out.accepted_per_step, out.proposals_per_step, block_size=BLOCK))
    return texts


def gate_of(target: Target, drafter: Drafter, path: TrainingPath | None = None, **shape: int) -> Gate:
    return Gate(drafter, target, target, path or AsTrained(drafter, target, target, "eager"), **shape)


def verdict_on(target: Target, drafter: Drafter, session: DraftSession, taps: tuple[int, ...] = TAPS) -> Parity:
    return check_parity(gate_of(target, drafter), decoded(target, session, taps=taps))


def as_config(drafter: Drafter, **changes: object) -> Drafter:
    """The same weights under another config."""
    other = Drafter(drafter.config.model_copy(update=changes))
    other.load_state_dict(drafter.state_dict())
    return other


def test_both_ways_agree_on_every_slot_and_every_label(target: Target, drafter: Drafter) -> None:
    found = verdict_on(target, drafter, DraftSession(drafter, target))
    assert (found.verdict, found.cause, found.says) == ("agree", None, "")
    assert found.num_slots == found.num_slots_equal > 60
    assert found.num_labels == found.num_labels_equal == 24 * len(PROMPTS)


def test_texts_packed_into_rows_of_the_trainers_shape_agree_too(target: Target, drafter: Drafter) -> None:
    texts = decoded(target, DraftSession(drafter, target))
    found = check_parity(gate_of(target, drafter, row_tokens=100, num_anchors=64), texts)
    assert found.verdict == "agree"
    assert found.num_slots == sum(len(text.anchors) for text in texts) * (BLOCK - 1)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("attention", ["eager", "flex"])
def test_the_training_steps_own_forward_pass_agrees_too(
    attention_target: Target, drafter: Drafter, attention: AttentionName
) -> None:
    """Two groups, the last one filled up with anchors that match nothing."""
    texts = decoded(attention_target, DraftSession(drafter, attention_target))
    path = AsStepped(drafter, attention_target, attention_target, attention, anchors_per_group=40)
    found = check_parity(gate_of(attention_target, drafter, path, row_tokens=100, num_anchors=50), texts)
    assert found.verdict == "agree"
    assert found.num_slots == sum(len(text.anchors) for text in texts) * (BLOCK - 1)


def test_anchors_beyond_the_rows_and_texts_longer_than_a_row_are_left_out(
    attention_target: Target, drafter: Drafter
) -> None:
    texts = decoded(attention_target, DraftSession(drafter, attention_target))
    found = check_parity(gate_of(attention_target, drafter, row_tokens=100, num_anchors=5), texts)
    assert (found.verdict, found.num_slots) == ("agree", 5 * (BLOCK - 1) * len(texts))
    nothing = check_parity(gate_of(attention_target, drafter, row_tokens=20, num_anchors=5), texts)
    assert nothing.verdict == "not checked"


@pytest.mark.parametrize(("shift", "said"), [(1, "the output of layer t + 1"), (-1, "the output of layer t - 1")])
def test_taps_read_one_layer_off_are_named(target: Target, shift: int, said: str) -> None:
    drafter = make_drafter(tap_layers=(1, 2))
    session = DraftSession(drafter, target)
    found = verdict_on(target, drafter, session, taps=(1 + shift, 2 + shift))
    assert (found.verdict, found.cause) == ("differ", "tap offset")
    assert said in found.says
    assert "free-running decoding is explained" in found.says
    assert "100.0% of its proposals agree then" in found.says


def test_a_tap_that_does_not_reach_fc_is_named(attention_target: Target, drafter: Drafter) -> None:
    class OneTap(DraftSession):
        def extend(self, taps_TF: Tensor) -> None:
            super().extend(torch.cat((taps_TF[:, :WIDTH], torch.zeros_like(taps_TF[:, WIDTH:])), dim=-1))

    found = verdict_on(attention_target, drafter, OneTap(drafter, attention_target))
    assert found.cause == "tap count"
    assert "only the first 1 of 2 taps reach fc" in found.says


@pytest.mark.parametrize(
    ("start", "said"), [(1, "context positions count from 1, block"), (-1, "context positions count from 0, block")]
)
def test_positions_that_start_apart_are_named(
    attention_target: Target, drafter: Drafter, start: int, said: str
) -> None:
    class Apart(DraftSession):
        def extend(self, taps_TF: Tensor) -> None:
            self.num_context += start
            super().extend(taps_TF)
            self.num_context -= start

    found = verdict_on(attention_target, drafter, Apart(drafter, attention_target))
    assert found.cause == "positions"
    assert said in found.says


def test_positions_that_count_from_1_everywhere_change_nothing(attention_target: Target, drafter: Drafter) -> None:
    """Rotary positions are relative: what matters is that context and blocks count alike."""

    class FromOne(Drafter):
        def _rope(self, positions: Tensor, dtype: torch.dtype) -> Any:
            return super()._rope(positions + 1, dtype)

    other = FromOne(drafter.config)
    other.load_state_dict(drafter.state_dict())
    assert verdict_on(attention_target, drafter, DraftSession(other, attention_target)).verdict == "agree"


@pytest.mark.parametrize(
    ("is_causal", "said"), [(True, "all layers are causal"), (False, "no layer is causal inside a block")]
)
def test_another_causal_flag_is_named(attention_target: Target, drafter: Drafter, is_causal: bool, said: str) -> None:
    found = verdict_on(
        attention_target, drafter, DraftSession(as_config(drafter, is_causal=is_causal), attention_target)
    )
    assert found.cause == "causal flag"
    assert said in found.says


@pytest.mark.parametrize(
    ("window", "said"),
    [(None, "see the whole context"), (WINDOW - 1, "5 tokens instead of 6"), (WINDOW + 1, "7 tokens instead of 6")],
)
def test_another_window_is_named(attention_target: Target, drafter: Drafter, window: int | None, said: str) -> None:
    found = verdict_on(
        attention_target, drafter, DraftSession(as_config(drafter, sliding_window=window), attention_target)
    )
    assert found.cause == "window"
    assert said in found.says


class OtherMask(AsTrained):
    """A trainer whose blocks see `num_beyond` context states more than those before their anchor."""

    num_beyond = 0

    def blocks(self, row: PackedRow, states: TargetStates, anchors: Anchors) -> Tensor:  # type: ignore[override]
        drafter = self.drafter
        layout = row_layout(row, anchors, BLOCK, device=states.taps_TF.device)
        context = drafter.context_keys_values(drafter.context_states(states.taps_TF), layout.context_positions_T)
        ids_NK = torch.full((len(anchors), BLOCK), drafter.config.mask_token_id)
        ids_NK[:, 0] = torch.from_numpy(row.input_ids_T[anchors.indices_N])
        seen = replace(layout, anchor_indices_N=layout.anchor_indices_N + self.num_beyond)
        attend = by_document_attend(drafter.config, seen)
        return drafter(self.ends.embed(ids_NK.flatten()), layout.block_positions_Q(), context, attend)


class SeesItsAnchor(OtherMask):
    num_beyond = 1


class MissesTheLast(OtherMask):
    num_beyond = -1


@pytest.mark.parametrize(
    ("trainer", "said"),
    [(SeesItsAnchor, "sees the context state of its own anchor"), (MissesTheLast, "misses the context state")],
)
def test_a_mask_that_sees_too_much_or_too_little_is_named_on_the_trainers_side(
    attention_target: Target, drafter: Drafter, trainer: type[OtherMask], said: str
) -> None:
    texts = decoded(attention_target, DraftSession(drafter, attention_target))
    found = check_parity(
        gate_of(attention_target, drafter, trainer(drafter, attention_target, attention_target, "eager")), texts
    )
    assert (found.verdict, found.cause) == ("differ", "mask")
    assert said in found.says
    assert "the training path is explained" in found.says


class LabelsOf(AsTrained):
    """A trainer whose labels come from what `final_of` makes of a tapped layer."""

    layer = 2

    def final_of(self, states_TE: Tensor) -> Tensor:
        return states_TE

    def states(self, row: PackedRow) -> TargetStates:
        states = super().states(row)
        other = self.target.states(row, (self.layer,))
        return TargetStates(states.taps_TF, self.final_of(other.taps_TF))


class LabelsWithoutNorm(LabelsOf):
    layer = 3


class LabelsOfATapNormed(LabelsOf):
    def final_of(self, states_TE: Tensor) -> Tensor:
        with torch.no_grad():
            return self.target.decoder.norm(states_TE)


class LabelsTooLate(AsTrained):
    def states(self, row: PackedRow) -> TargetStates:
        states = super().states(row)
        return TargetStates(states.taps_TF, states.final_TE.roll(-1, dims=0))


@pytest.mark.parametrize(
    ("trainer", "said"),
    [
        (LabelsOf, "the output of layer 2 without the final norm"),
        (LabelsOfATapNormed, "the output of layer 2 through the final norm"),
        (LabelsWithoutNorm, "the output of layer 3 without the final norm"),
        (LabelsTooLate, "the final state one position too late"),
    ],
)
def test_labels_from_elsewhere_are_named(target: Target, drafter: Drafter, trainer: type[AsTrained], said: str) -> None:
    target = Target(copy.deepcopy(target.model), target.shape)
    with torch.no_grad():  # a norm of ones moves no arg-max
        target.decoder.norm.weight.copy_(1 + torch.randn(WIDTH, generator=torch.Generator().manual_seed(0)))
    texts = decoded(target, DraftSession(drafter, target))
    found = check_parity(gate_of(target, drafter, trainer(drafter, target, target, "eager")), texts)
    assert (found.verdict, found.cause) == ("differ", "label layer")
    assert said in found.says
    assert found.num_slots_equal == found.num_slots


def test_another_template_is_named_where_all_tensors_agree(attention_target: Target, drafter: Drafter) -> None:
    texts = decoded(attention_target, DraftSession(drafter, attention_target))
    finding = TemplateFinding(64, 0, "64 of 64 prompts end otherwise: they end as with enable_thinking=false")
    found = check_parity(gate_of(attention_target, drafter), texts, template=finding)
    assert (found.verdict, found.cause, found.says) == ("differ", "chat template", finding.says)


def test_a_mistake_that_nobody_foresaw_is_called_unknown(attention_target: Target, drafter: Drafter) -> None:
    class Negated(DraftSession):
        def extend(self, taps_TF: Tensor) -> None:
            super().extend(-taps_TF)

    found = verdict_on(attention_target, drafter, Negated(drafter, attention_target))
    assert (found.verdict, found.cause) == ("differ", "unknown")


def test_the_shortened_last_block_is_not_compared() -> None:
    text = text_of((1, 2), (3, 4, 5, 6), (2, 1), ((4, 9, 9), (7,)), block_size=4)
    assert (text.anchors, text.drafts) == ((2,), ((4, 9, 9),))


def trained_by_heart(target: Target, texts: list[Text], taps: tuple[int, ...]) -> Drafter:
    """On the texts' own anchors, with the states of other layers than its config says."""
    from dflashctl_remote.evaluate.parity import _pack_row
    from dflashctl_remote.spec.train import ObjectiveSpec

    drafter = make_drafter(tap_layers=TAPS, initializer_range=0.125)
    packed = _pack_row(texts, None, None)
    states = target.states(packed.row, taps)
    adam = torch.optim.Adam(drafter.parameters(), lr=3e-3)
    for _ in range(120):
        loss = drafter_loss(drafter, target, packed.row, states, packed.anchors, ObjectiveSpec(), attention="eager")
        adam.zero_grad()
        (loss.loss_sum / loss.weight_sum).backward()
        adam.step()
    return drafter


@pytest.mark.parametrize(("taps", "cause"), [((1, 3), "tap offset"), (TAPS, None)])
def test_a_drafter_that_was_trained_on_other_layers_is_found_out(
    attention_target: Target, drafter: Drafter, taps: tuple[int, ...], cause: str | None
) -> None:
    texts = decoded(attention_target, DraftSession(drafter, attention_target), prompts=MANY_PROMPTS)
    learnt = trained_by_heart(attention_target, texts, taps)
    gate = gate_of(attention_target, learnt)
    better = better_convention(gate, texts)
    assert (better.cause if better else None) == cause
    own = decoded(attention_target, DraftSession(learnt, attention_target), prompts=MANY_PROMPTS)
    found = check_parity(gate, own, tries_conventions=True)
    assert found.verdict == ("trained otherwise" if cause else "agree")
    assert found.cause == cause
