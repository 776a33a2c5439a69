import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from loss_problems import make_head, make_rows, reference_losses, reference_weights

from dflashctl_remote.losses import base, registry
from dflashctl_remote.losses.base import Rows
from dflashctl_remote.losses.registry import LOSSES, WEIGHTINGS, needs_final, row_terms
from dflashctl_remote.spec.objective import LossName, ObjectiveSpec, WeightingName

OBJECTIVES = [
    ObjectiveSpec(loss=loss, weighting=weighting, **parameters)
    for (loss, kinds), (weighting, others) in itertools.product(
        {"hard_ce": [{}], "soft_kl": [{}, {"temperature": 2.5}]}.items(),
        {
            "decay": [{}, {"gamma": 2.0}],
            "d_pace": [{}, {"d_pace_alpha": 0.2}],
            "streak": [{}, {"gamma": 2.0, "streak_alpha": 3.0}],
        }.items(),
    )
    for kind, other in itertools.product(kinds, others)
    for parameters in [kind | other]
]


def test_every_name_of_the_spec_has_its_code_and_its_readme() -> None:
    assert tuple(LOSSES) == get_args(LossName)
    assert tuple(WEIGHTINGS) == get_args(WeightingName)
    folder = Path(registry.__file__).parent
    for name in (*LOSSES, *WEIGHTINGS, "confidence"):
        assert "Source: " in (folder / name / "README.md").read_text(), name


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: f"{o.loss}-{o.weighting}")
@pytest.mark.parametrize("scored", [(7, 1, 0, 4, 5), (3,), (1, 1)], ids=["many", "one block", "one slot each"])
def test_any_loss_with_any_weighting_equals_loops_in_fp64(objective: ObjectiveSpec, scored: tuple[int, ...]) -> None:
    rows, head = make_rows(scored), make_head()
    states = rows.states_RD.detach().double().requires_grad_()
    weights, total = reference_weights(rows, head.double(), objective)
    losses = reference_losses(rows, states, head.double(), objective)
    wanted = sum(weight * loss for weight, loss in zip(weights, losses, strict=True))
    (wanted_grad,) = torch.autograd.grad(wanted, states)

    found = row_terms(rows, head, replace_chunk(objective, 8))
    (grad,) = torch.autograd.grad(found.loss_sum, rows.states_RD)
    torch.testing.assert_close(found.loss_sum.double(), wanted, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(grad.double(), wanted_grad, rtol=1e-5, atol=1e-5)
    assert float(found.weight_sum) == pytest.approx(total, rel=1e-6)
    plain = torch.nn.functional.cross_entropy(states.detach() @ head.double().T, rows.labels_R, reduction="none")
    torch.testing.assert_close(found.cross_entropy_R.double(), plain, rtol=1e-5, atol=1e-5)
    assert torch.equal(found.top1_R, (states.detach() @ head.double().T).argmax(1))
    assert not found.cross_entropy_R.requires_grad and not found.weight_sum.requires_grad


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: f"{o.loss}-{o.weighting}")
def test_groups_of_whole_blocks_add_up_to_the_whole(objective: ObjectiveSpec) -> None:
    """The second group counts its blocks from where the first ended."""
    rows, head = make_rows((7, 1, 0, 4, 5), first_block=40), make_head()
    whole = row_terms(rows, head, objective)
    (wanted,) = torch.autograd.grad(whole.loss_sum, rows.states_RD)
    loss_sum, weight_sum, grads = 0.0, 0.0, []
    for part, num_blocks in ((slice(0, 8), 3), (slice(8, None), 2)):
        states = rows.states_RD.detach()[part].requires_grad_()
        group = replace(
            rows,
            states_RD=states,
            final_RE=rows.final_RE[part],
            labels_R=rows.labels_R[part],
            slots_R=rows.slots_R[part],
            blocks_R=rows.blocks_R[part],
            num_blocks=num_blocks,
        )
        terms = row_terms(group, head, objective)
        terms.loss_sum.backward()
        loss_sum, weight_sum = loss_sum + float(terms.loss_sum.detach()), weight_sum + float(terms.weight_sum)
        grads.append(states.grad)
    assert loss_sum == pytest.approx(float(whole.loss_sum.detach()), rel=1e-5)
    assert weight_sum == pytest.approx(float(whole.weight_sum), rel=1e-9)
    torch.testing.assert_close(torch.cat(grads), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: f"{o.loss}-{o.weighting}")
@pytest.mark.parametrize("scale", [0.0, 1e4])
def test_flat_and_extreme_logits_give_finite_losses_and_gradients(objective: ObjectiveSpec, scale: float) -> None:
    rows = make_rows(scale=scale)
    terms = row_terms(rows, make_head(), objective)
    (grad,) = torch.autograd.grad(terms.loss_sum, rows.states_RD)
    assert terms.loss_sum.isfinite() and grad.isfinite().all() and terms.weight_sum > 0


def test_weights_that_vanish_leave_exact_zeros() -> None:
    rows = make_rows()
    terms = row_terms(rows, make_head(), ObjectiveSpec(gamma=1e-3))
    (grad,) = torch.autograd.grad(terms.loss_sum, rows.states_RD)
    assert not grad[rows.slots_R > 1].any() and grad[rows.slots_R == 1].any(dim=1).all()
    assert float(terms.weight_sum) == 4


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: f"{o.loss}-{o.weighting}")
def test_a_group_without_rows_adds_nothing(objective: ObjectiveSpec) -> None:
    rows = make_rows((0, 0))
    terms = row_terms(rows, make_head(), objective)
    terms.loss_sum.backward()
    assert float(terms.loss_sum.detach()) == 0 and float(terms.weight_sum) == 0


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: f"{o.loss}-{o.weighting}")
def test_no_gradient_reaches_the_head_the_target_or_the_weights(objective: ObjectiveSpec) -> None:
    rows, head = make_rows(), make_head().requires_grad_()
    final = rows.final_RE.requires_grad_()
    row_terms(replace(rows, final_RE=final), head, objective).loss_sum.backward()
    assert head.grad is None and final.grad is None


def test_only_the_soft_loss_asks_for_the_targets_states() -> None:
    assert not needs_final(ObjectiveSpec())
    assert needs_final(ObjectiveSpec(loss="soft_kl"))
    row_terms(replace(make_rows(), final_RE=None), make_head(), ObjectiveSpec())


def test_a_streak_ends_with_its_block() -> None:
    """The first slot of a block stands on nothing, however the block before it ended."""
    rows = make_rows((2, 2))
    before, upto = base.prefix_is_right(rows, torch.where(torch.tensor([0, 1, 1, 1]).bool(), rows.labels_R, -1))
    assert before.tolist() == [True, False, True, True]
    assert upto.tolist() == [False, False, True, True]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: f"{o.loss}-{o.weighting}")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 3e-2)])
def test_a_gpu_gives_what_the_cpu_gives(objective: ObjectiveSpec, dtype: torch.dtype, tolerance: float) -> None:
    """bf16 states and head are compared with the same numbers in fp32."""
    rows, head = make_rows(), make_head().to(dtype)
    rows = replace(rows, states_RD=rows.states_RD.detach().to(dtype).float().requires_grad_())
    rows = replace(rows, final_RE=rows.final_RE.to(dtype).float())
    wanted = row_terms(rows, head.float(), objective)
    (wanted_grad,) = torch.autograd.grad(wanted.loss_sum, rows.states_RD)
    there = Rows(**{name: to_gpu(value, dtype) for name, value in vars(rows).items()})
    found = row_terms(there, head.cuda(), objective)
    (grad,) = torch.autograd.grad(found.loss_sum, there.states_RD)
    assert torch.equal(found.top1_R.cpu(), wanted.top1_R)
    torch.testing.assert_close(found.loss_sum.cpu(), wanted.loss_sum, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found.weight_sum.cpu(), wanted.weight_sum, rtol=tolerance, atol=0.0)
    assert float((grad.float().cpu() - wanted_grad).norm() / wanted_grad.norm()) < tolerance


def to_gpu(value: Any, dtype: torch.dtype) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    moved = value.detach().cuda()
    return moved.to(dtype).requires_grad_(value.requires_grad) if moved.is_floating_point() else moved


def replace_chunk(objective: ObjectiveSpec, rows: int) -> ObjectiveSpec:
    return objective.model_copy(update={"loss_chunk_rows": rows})
