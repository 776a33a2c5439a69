"""Groups of blocks with made-up states, and what losses and weightings must give on them: fp64, in loops."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from dflashctl_remote.losses.base import RowLosses, Rows
from dflashctl_remote.spec.drafter import default_gamma
from dflashctl_remote.spec.objective import ObjectiveSpec

BLOCK_SIZE = 8
WIDTH = 12
VOCAB = 41


def make_head() -> Tensor:
    return torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(1))


def make_rows(scored: Sequence[int] = (7, 1, 0, 4, 5), *, first_block: int = 0, scale: float = 1.0) -> Rows:
    """Blocks of which the first so many slots are scored, some whole and one none. About 6 of 10 labels are right."""
    generator = torch.Generator().manual_seed(2)
    slots = [slot for count in scored for slot in range(1, count + 1)]
    blocks = [first_block + block for block, count in enumerate(scored) for _ in range(count)]
    states = scale * torch.randn(len(slots), WIDTH, generator=generator)
    labels = torch.randint(0, VOCAB, (len(slots),), generator=generator)
    top1 = (states @ make_head().T).argmax(-1)
    is_right = torch.rand(len(slots), generator=generator) < 0.6
    return Rows(
        states_RD=states.requires_grad_(),
        final_RE=scale * torch.randn(len(slots), WIDTH, generator=generator),
        labels_R=torch.where(is_right, top1, labels),
        slots_R=torch.tensor(slots, dtype=torch.int64),
        blocks_R=torch.tensor(blocks, dtype=torch.int64),
        num_blocks=len(scored),
        block_size=BLOCK_SIZE,
    )


def given(cross_entropy: Sequence[float], is_right: Sequence[bool], scored: Sequence[int]) -> tuple[Rows, RowLosses]:
    """Rows of one label, 1, whose losses are given."""
    rows = make_rows(scored)
    top1 = torch.tensor([1 if right else 0 for right in is_right])
    rows = Rows(
        rows.states_RD, None, torch.ones_like(top1), rows.slots_R, rows.blocks_R, rows.num_blocks, rows.block_size
    )
    found = torch.tensor(cross_entropy)
    return rows, RowLosses(found, found, top1)


def blocks_of(rows: Rows) -> list[list[int]]:
    """Row indices of each block that has any, in order."""
    found: dict[int, list[int]] = {}
    for row, block in enumerate(rows.blocks_R.tolist()):
        found.setdefault(block, []).append(row)
    return list(found.values())


def reference_losses(rows: Rows, states_RD: Tensor, head_VE: Tensor, objective: ObjectiveSpec) -> list[Tensor]:
    """The loss of each row in fp64, differentiable in `states_RD`."""
    temperature = objective.temperature or 1.0
    out = []
    for row, label in enumerate(rows.labels_R.tolist()):
        logits = head_VE @ states_RD[row]
        if objective.loss == "hard_ce":
            out.append(logits.logsumexp(0) - logits[label])
            continue
        log_p = F.log_softmax(head_VE @ rows.final_RE[row].double() / temperature, dim=0)
        log_q = F.log_softmax(logits / temperature, dim=0)
        out.append(temperature**2 * sum(log_p[v].exp() * (log_p[v] - log_q[v]) for v in range(VOCAB)))
    return out


def reference_weights(rows: Rows, head_VE: Tensor, objective: ObjectiveSpec) -> tuple[list[float], float]:
    """The weight of each row, and what their loss is divided by."""
    logits = rows.states_RD.detach().double() @ head_VE.T
    log_q = F.log_softmax(logits, dim=1).gather(1, rows.labels_R[:, None])[:, 0].tolist()
    is_right = (logits.argmax(1) == rows.labels_R).tolist()
    gamma = objective.gamma or default_gamma(rows.block_size)
    weights = [0.0] * len(log_q)
    for block in blocks_of(rows):
        for at, row in enumerate(block):
            decay = math.exp(-(int(rows.slots_R[row]) - 1) / gamma)
            if objective.weighting == "decay":
                weights[row] = decay
            elif objective.weighting == "streak":
                alpha = 1.0 if objective.streak_alpha is None else objective.streak_alpha
                weights[row] = decay * (1 + alpha * all(is_right[before] for before in block[:at]))
            else:
                alpha = objective.d_pace_alpha or 0.5
                smooth = [(1 - alpha) * math.exp(log_q[other]) + alpha for other in block]
                weights[row] = sum(math.prod(smooth[: upto + 1]) for upto in range(at, len(block)))
    total = float(len(blocks_of(rows))) if objective.weighting == "d_pace" else sum(weights)
    return weights, total
