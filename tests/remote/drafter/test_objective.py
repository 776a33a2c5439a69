import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dflashctl_remote.data.pack import PackedRow
from dflashctl_remote.drafter.anchors import Anchors, sample_anchors
from dflashctl_remote.drafter.noise import context_noise
from dflashctl_remote.drafter.objective import drafter_loss
from dflashctl_remote.spec.drafter import DrafterConfig
from dflashctl_remote.spec.objective import ObjectiveSpec

MakeRow = Callable[..., PackedRow]


def test_a_perfectly_flat_drafter_loses_ln_v_whatever_the_weights(
    make_config: Any, make_drafter: Any, make_row: MakeRow, make_states: Any, ends: Any
) -> None:
    config = make_config()
    row, drafter = make_row((30, 20), total=56), make_drafter(config)
    with torch.no_grad():
        drafter.norm.weight.zero_()
    anchors = sample_anchors(row, num_anchors=12, seed=0, batch=0)
    out = drafter_loss(drafter, ends, row, make_states(row, config), anchors, ObjectiveSpec(), attention="eager")
    assert float(out.loss_sum.detach()) / out.weight_sum == pytest.approx(math.log(config.vocab_size), rel=1e-5)


def test_padding_and_packing_order_change_no_loss(
    mixed_config: DrafterConfig, make_drafter: Any, make_row: MakeRow, make_states: Any, ends: Any
) -> None:
    """Two documents, in the other order and with more padding, with the same anchors: the same loss."""
    config, drafter = mixed_config, make_drafter(mixed_config)
    row = make_row((18, 13), total=31)
    states = make_states(row, config)
    anchors = sample_anchors(row, num_anchors=14, seed=0, batch=0)
    straight = drafter_loss(drafter, ends, row, states, anchors, ObjectiveSpec(), attention="eager")

    order = np.concatenate((np.arange(18, 31), np.arange(18)))
    swapped = make_row((13, 18), total=50)
    swapped.input_ids_T[:31] = row.input_ids_T[order]
    moved = np.where(anchors.documents_N == 0, anchors.indices_N + 13, anchors.indices_N - 18)
    sorting = np.argsort(moved)
    moved = moved[sorting]
    there = Anchors(moved, swapped.positions_T[moved], swapped.document_ids_T[moved], len(moved))
    taps, final = torch.full((50, states.taps_TF.shape[1]), 7.0), torch.full((50, config.hidden_size), 7.0)
    taps[:31], final[:31] = states.taps_TF[order], states.final_TE[order]
    other = drafter_loss(
        drafter, ends, swapped, replace(states, taps_TF=taps, final_TE=final), there, ObjectiveSpec(), attention="eager"
    )
    assert float(other.loss_sum.detach()) / other.weight_sum == pytest.approx(
        float(straight.loss_sum.detach()) / straight.weight_sum, abs=1e-6
    )
    assert other.num_correct == straight.num_correct


def test_blocks_never_see_each_other(
    make_config: Any, make_drafter: Any, make_row: MakeRow, make_states: Any, ends: Any
) -> None:
    """A block alone and the same block among others give the same gradient, when only it is scored."""
    config = make_config()
    row, drafter = make_row((40,), total=40), make_drafter(config)
    states = make_states(row, config)

    def gradient(*indices: int) -> torch.Tensor:
        at = np.array(indices)
        anchors = Anchors(at, row.positions_T[at], row.document_ids_T[at], len(at))
        loss = drafter_loss(drafter, ends, row, states, anchors, ObjectiveSpec(), attention="eager").loss_sum
        return torch.autograd.grad(loss, drafter.fc.weight)[0]

    torch.testing.assert_close(gradient(5, 6, 20), gradient(5) + gradient(6) + gradient(20), rtol=1e-4, atol=1e-4)


def test_noise_touches_the_drafters_copy_and_no_label(
    make_config: Any, make_drafter: Any, make_row: MakeRow, make_states: Any, ends: Any
) -> None:
    config = make_config()
    row, drafter = make_row((30,), total=30), make_drafter(config)
    states = make_states(row, config)
    before = states.final_TE.clone(), states.taps_TF.clone()
    anchors = sample_anchors(row, num_anchors=8, seed=0, batch=0)

    def loss(std: float) -> Any:
        spec = ObjectiveSpec(context_noise_std=std)
        noise = context_noise(spec, seed=1, sequence=0, num_batches=1)
        return drafter_loss(drafter, ends, row, states, anchors, spec, attention="eager", noise=noise)

    assert float(loss(0.5).loss_sum.detach()) != float(loss(0.0).loss_sum.detach())
    assert torch.equal(states.final_TE, before[0]) and torch.equal(states.taps_TF, before[1])
    assert torch.equal(loss(0.5).scored_by_slot_K, loss(0.0).scored_by_slot_K)


def test_labels_come_from_the_clean_states(
    make_config: Any, make_drafter: Any, make_row: MakeRow, make_states: Any, ends: Any
) -> None:
    """A drafter that hears nothing of its context can notice the noise by its labels alone."""
    config = make_config()
    row, drafter = make_row((30,), total=30), make_drafter(config)
    torch.nn.init.zeros_(drafter.fc.weight)
    states = make_states(row, config)
    anchors = sample_anchors(row, num_anchors=8, seed=0, batch=0)

    def loss(std: float) -> Any:
        spec = ObjectiveSpec(context_noise_std=std)
        noise = context_noise(spec, seed=1, sequence=0, num_batches=1)
        return drafter_loss(drafter, ends, row, states, anchors, spec, attention="eager", noise=noise)

    clean, noisy = loss(0.0), loss(2.0)
    assert torch.equal(noisy.loss_sum, clean.loss_sum)
    assert noisy.num_correct == clean.num_correct
