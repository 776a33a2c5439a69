"""The same weights, anchors, labels and gamma in the `speculators` package: the same cross-entropy, slot by slot.

Its normalisation (by the count of supervised slots) is undone; its window keeps one bound a block, so rows
here are shorter than the window.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from peers_drafter import make_drafter
from torch import Tensor
from transformers.models.qwen3.modeling_qwen3 import Qwen3Config, Qwen3RMSNorm

from dflashctl_remote.data.pack import PackedRow
from dflashctl_remote.drafter.anchors import Anchors, sample_anchors, slot_supervision
from dflashctl_remote.drafter.model import Drafter
from dflashctl_remote.drafter.objective import block_states, drafter_loss, row_layout
from dflashctl_remote.drafter.scored import scored_slots
from dflashctl_remote.losses.linear_ce import linear_cross_entropy
from dflashctl_remote.spec.objective import ObjectiveSpec

pytest.importorskip("speculators", reason="the speculators package is not here: run `make test-peers`")
from speculators.losses import resolve_loss_config
from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig, core

GAMMA = 3.0
NUM_ANCHORS = 20


@dataclass(frozen=True)
class Problem:
    row: PackedRow
    anchors: Anchors
    taps_TF: Tensor
    final_TE: Tensor
    """After the final norm."""
    residual_TE: Tensor
    """Before it: what speculators is fed."""
    norm_weight_E: Tensor
    embedding_VE: Tensor
    head_VE: Tensor

    def embed(self, ids: Tensor) -> Tensor:
        return self.embedding_VE[ids]


def make_problem(drafter: Drafter, lengths: tuple[int, ...], prompt: int, total: int) -> Problem:
    """Documents whose prompts are longer than a block, so that no block runs into the next one's answer."""
    config = drafter.config
    generator = torch.Generator().manual_seed(7)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    positions, documents = np.zeros(total, dtype=np.int64), np.full(total, -1, dtype=np.int64)
    supervised = np.zeros(total, dtype=bool)
    start = 0
    for document, length in enumerate(lengths):
        positions[start : start + length] = np.arange(length)
        documents[start : start + length] = document
        supervised[start + prompt : start + length] = True
        start += length
    ids = torch.randint(0, config.vocab_size - 1, (total,), generator=generator).numpy()
    row = PackedRow(ids, positions, documents, supervised, lengths)
    residual, weight = drawn(total, config.hidden_size), 1 + 0.2 * drawn(config.hidden_size)
    norm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
    norm.weight.data.copy_(weight)
    return Problem(
        row=row,
        anchors=sample_anchors(row, num_anchors=NUM_ANCHORS, seed=1, batch=1),
        taps_TF=drawn(total, len(config.tap_layers) * config.hidden_size),
        final_TE=norm(residual).detach(),
        residual_TE=residual,
        norm_weight_E=weight,
        embedding_VE=drawn(config.vocab_size, config.hidden_size),
        head_VE=drawn(config.vocab_size, config.hidden_size) / config.hidden_size**0.5,
    )


def peer_of(drafter: Drafter, problem: Problem, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The speculators model with our weights, our anchors and our frozen head."""
    config = drafter.config
    qwen3 = Qwen3Config(
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        head_dim=config.head_dim,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        rms_norm_eps=config.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        max_position_embeddings=config.max_position_embeddings,
        layer_types=list(config.layer_types),
        sliding_window=config.sliding_window,
        use_sliding_window=config.sliding_window is not None,
        tie_word_embeddings=False,
    )
    qwen3._attn_implementation = "eager"
    theirs = DFlashDraftModel(
        DFlashSpeculatorConfig(
            transformer_layer_config=qwen3,
            draft_vocab_size=config.vocab_size,
            block_size=config.block_size,
            aux_hidden_state_layer_ids=[tap + 1 for tap in config.tap_layers],
            mask_token_id=config.mask_token_id,
        )
    )
    weights = dict(drafter.state_dict()) | {
        "embed_tokens.weight": problem.embedding_VE,
        "lm_head.weight": problem.head_VE,
        "verifier_lm_head.weight": problem.head_VE,
        "verifier_norm.weight": problem.norm_weight_E,
    }
    missing, unexpected = theirs.load_state_dict(weights, strict=False)
    assert not unexpected and not [name for name in missing if "rotary" not in name], (missing, unexpected)
    anchors = problem.anchors
    is_real = torch.arange(len(anchors)) < anchors.num_real
    monkeypatch.setattr(core, "select_anchors", lambda *_: (torch.from_numpy(anchors.indices_N), is_real))
    return theirs.float().eval()


def peer_inputs(problem: Problem) -> dict[str, Tensor]:
    row = problem.row
    return {
        "hidden_states": problem.taps_TF[None],
        "input_ids": torch.from_numpy(row.input_ids_T)[None],
        "loss_mask": torch.from_numpy(row.is_supervised_T.astype(np.int64))[None],
        "verifier_last_hidden_states": problem.residual_TE[None],
        "document_ids": torch.from_numpy(row.document_ids_T)[None],
        "position_ids": torch.from_numpy(row.positions_T)[None],
    }


def ours_by_slot(drafter: Drafter, problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """(rows into the Q block tokens, cross-entropy, is correct) of every scored slot."""
    objective = ObjectiveSpec(gamma=GAMMA)
    layout = row_layout(problem.row, problem.anchors, drafter.config.block_size, device=torch.device("cpu"))
    hidden = block_states(drafter, problem, problem.row, problem.taps_TF, layout, attention="eager")
    size = drafter.config.block_size
    scored = scored_slots(problem, problem.row, problem.final_TE, problem.anchors, objective, size)
    loss = linear_cross_entropy(hidden[scored.rows_R], problem.head_VE, scored.labels_R)
    return scored.rows_R, loss.cross_entropy_R, loss.top1_R == scored.labels_R


@torch.no_grad()
def compare(drafter: Drafter, problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = peer_of(drafter, problem, monkeypatch)
    _, logits, targets, mask, _ = theirs._backbone_forward(**peer_inputs(problem), max_anchors=NUM_ANCHORS)
    rows, cross_entropy, is_correct = ours_by_slot(drafter, problem)
    size = drafter.config.block_size
    assert len(rows) > NUM_ANCHORS * 3
    assert set(rows.tolist()) == set(mask[0].nonzero().flatten().tolist())
    labels = targets[0].argmax(-1)
    wanted = torch.nn.functional.cross_entropy(logits[0], labels, reduction="none")
    torch.testing.assert_close(cross_entropy, wanted[rows], rtol=1e-5, atol=1e-5)
    assert torch.equal(is_correct, (logits[0].argmax(-1) == labels)[rows])

    _, loss, metrics = theirs(
        **peer_inputs(problem), loss_config=resolve_loss_config("ce", "eager"), gamma=GAMMA, max_anchors=NUM_ANCHORS
    )
    step = drafter_loss(
        drafter, problem, problem.row, problem, problem.anchors, ObjectiveSpec(gamma=GAMMA), attention="eager"
    )
    num_supervised = int(slot_supervision(problem.row, problem.anchors, size).sum())
    torch.testing.assert_close(loss * num_supervised, step.loss_sum, rtol=1e-5, atol=1e-5)
    assert int(metrics["full_acc_sum"]) == step.num_correct
    for slot in range(1, size):
        assert int(metrics[f"position_{slot}_acc_sum"]) == int(step.correct_by_slot_K[slot])
        assert int(metrics[f"position_{slot}_acc_total"]) == int(step.scored_by_slot_K[slot])


def test_full_attention_cross_entropy_accuracy_and_total_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = make_drafter("full")
    compare(drafter, make_problem(drafter, (30, 26, 22), prompt=10, total=96), monkeypatch)


@pytest.mark.parametrize("kind", ["sliding", "mixed"])
def test_sliding_layers_agree_on_documents_inside_the_window(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = make_drafter(kind, sliding_window=64)
    compare(drafter, make_problem(drafter, (30, 26, 22), prompt=10, total=96), monkeypatch)
