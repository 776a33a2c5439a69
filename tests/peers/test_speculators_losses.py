"""Our weightings and soft loss against the `speculators` package's own, row by row."""

import pytest
import torch
from torch import Tensor

from dflashctl_remote.losses.base import RowLosses, Rows
from dflashctl_remote.losses.d_pace import weights as d_pace
from dflashctl_remote.losses.decay import weights as decay
from dflashctl_remote.losses.soft_kl import loss as soft_kl
from dflashctl_remote.spec.objective import ObjectiveSpec

pytest.importorskip("speculators", reason="the speculators package is not here: run `make test-peers`")
from speculators.losses import eager, utils

SCORED, SIZE, WIDTH, VOCAB = (7, 2, 0, 5), 8, 24, 53


def make_rows() -> Rows:
    generator = torch.Generator().manual_seed(0)
    slots = torch.tensor([slot for count in SCORED for slot in range(1, count + 1)])
    blocks = torch.tensor([block for block, count in enumerate(SCORED) for _ in range(count)])
    return Rows(
        states_RD=torch.randn(len(slots), WIDTH, generator=generator).requires_grad_(),
        final_RE=torch.randn(len(slots), WIDTH, generator=generator),
        labels_R=torch.randint(0, VOCAB, (len(slots),), generator=generator),
        slots_R=slots,
        blocks_R=blocks,
        num_blocks=len(SCORED),
        block_size=SIZE,
    )


def in_blocks(rows: Rows, values_R: Tensor) -> Tensor:
    """Rows where their layout has them: [1, blocks * size], zeros elsewhere."""
    out = torch.zeros(1, len(SCORED) * SIZE, dtype=values_R.dtype)
    out[0, rows.blocks_R * SIZE + rows.slots_R] = values_R
    return out


@pytest.mark.parametrize("alpha", [0.3, 0.5, 1.0])
def test_d_pace_weights_agree(alpha: float) -> None:
    rows = make_rows()
    cross_entropy = 4 * torch.rand(len(rows.slots_R), generator=torch.Generator().manual_seed(1))
    losses = RowLosses(cross_entropy, cross_entropy, rows.labels_R)
    ours = d_pace.row_weights(rows, losses, ObjectiveSpec(weighting="d_pace", d_pace_alpha=alpha)).weights_R
    theirs = utils.dpace_loss_decay(
        pos_idx=torch.arange(SIZE).repeat(len(SCORED))[None],
        loss_mask=in_blocks(rows, torch.ones_like(cross_entropy)),
        block_size=SIZE,
        dpace_alpha=alpha,
        elementwise_loss=in_blocks(rows, cross_entropy),
    )
    torch.testing.assert_close(in_blocks(rows, ours), theirs)


def test_decay_weights_agree() -> None:
    rows = make_rows()
    losses = RowLosses(torch.zeros(len(rows.slots_R)), torch.zeros(len(rows.slots_R)), rows.labels_R)
    ours = decay.row_weights(rows, losses, ObjectiveSpec(gamma=4.0)).weights_R
    theirs = utils.dflash_loss_decay(rows.slots_R.float(), gamma=4.0)
    torch.testing.assert_close(ours, theirs)


def test_soft_loss_and_its_gradient_agree_with_their_divergence() -> None:
    rows = make_rows()
    head = torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(2))
    ours = soft_kl.row_loss(rows, head, ObjectiveSpec(loss="soft_kl"))
    assert rows.final_RE is not None
    theirs = eager.kl_div_loss((rows.states_RD @ head.T)[None], (rows.final_RE @ head.T)[None])[0]
    torch.testing.assert_close(ours.loss_R, theirs, rtol=1e-5, atol=1e-5)
    weights = torch.rand(len(rows.slots_R), generator=torch.Generator().manual_seed(3))
    (mine,) = torch.autograd.grad((weights * ours.loss_R).sum(), rows.states_RD)
    (wanted,) = torch.autograd.grad((weights * theirs).sum(), rows.states_RD)
    torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-5)
