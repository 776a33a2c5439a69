"""The Triton kernel against fp64: in the interpreter on a CPU, compiled where there is a GPU."""

import pytest
import torch

from dflashctl_remote.kernels.common.checking import TOLERANCE, Checks, largest_error, relative_error
from dflashctl_remote.kernels.common.problems import random_problem, tied_problem
from dflashctl_remote.kernels.common.rows import RowTuning
from dflashctl_remote.kernels.linear_ce.check import compare
from dflashctl_remote.kernels.linear_ce.chunk import times_head
from dflashctl_remote.kernels.linear_ce.op import linear_cross_entropy
from dflashctl_remote.kernels.linear_ce.reference import reference

pytestmark = [
    pytest.mark.usefixtures("interpreter"),
    # Poisoning memory is a side of deterministic mode; on a GPU that has a word to say about matrix products.
    pytest.mark.filterwarnings("default:.*eterministic:UserWarning"),
]

SMALL = RowTuning(block=1024)
"""Several tiles of each vocabulary, the last one not full."""
FP32, BF16 = torch.float32, torch.bfloat16


def failures(checks: Checks) -> list[str]:
    return [f"{check.claim}: {check.detail}" for check in checks.found if check.state != "passed"]


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("num_vocab", [997, 4099])
@pytest.mark.parametrize("num_rows", [1, 7, 130])
def test_values_gradients_and_top1_equal_the_reference_at_odd_sizes(num_rows, num_vocab, device):
    checks = Checks("linear_ce")
    problem = random_problem(num_rows, 64, num_vocab, dtype=FP32, device=device, seed=num_rows)
    compare(checks, "fp32", problem, backend="triton", chunk_rows=50, tuning=SMALL)
    assert not failures(checks)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("width", [64, 100])
def test_bf16_is_within_one_step_of_the_reference(width, device):
    checks = Checks("linear_ce")
    problem = random_problem(7, width, 997, dtype=BF16, device=device)
    compare(checks, "bf16", problem, backend="triton", chunk_rows=5, tuning=RowTuning(block=256))
    assert not failures(checks)


def test_row_pass_writes_its_rows_and_nothing_beside_them(device):
    from dflashctl_remote.kernels.linear_ce.kernel import row_pass

    problem = random_problem(5, 64, 997, dtype=FP32, device=device)
    truth = reference(problem.states_RD, problem.head_VE, problem.labels_R)
    around = torch.full((7, 1003), torch.nan, device=device)
    logits_RV = around[1:6, 2:999]
    logits_RV.copy_(problem.states_RD @ problem.head_VE.T)
    cross_entropy_R = torch.full((7,), torch.nan, device=device)
    top1_R = torch.full((7,), -1, device=device)
    row_pass(
        logits_RV,
        problem.states_RD,
        problem.head_VE,
        problem.labels_R,
        None,
        cross_entropy_R[1:6],
        top1_R[1:6],
        wants_grad=True,
        tuning=SMALL,
    )
    assert largest_error(cross_entropy_R[1:6], truth.cross_entropy_R) < 1e-4
    assert torch.equal(top1_R, torch.nn.functional.pad(truth.top1_R, (1, 1), value=-1))
    assert relative_error(logits_RV @ problem.head_VE, truth.unit_grad_RD) < 1e-4
    outside = around.clone()
    outside[1:6, 2:999] = torch.nan
    assert cross_entropy_R[[0, 6]].isnan().all() and outside.isnan().all()


def test_logits_stay_as_they_are_if_no_gradient_is_wanted(device):
    from dflashctl_remote.kernels.linear_ce.kernel import row_pass

    problem = random_problem(3, 64, 997, dtype=FP32, device=device)
    logits_RV = problem.states_RD @ problem.head_VE.T
    before = logits_RV.clone()
    outputs = torch.empty(3, device=device), torch.empty(3, dtype=torch.int64, device=device)
    inputs = logits_RV, problem.states_RD, problem.head_VE, problem.labels_R, None
    row_pass(*inputs, *outputs, wants_grad=False, tuning=SMALL)
    assert torch.equal(logits_RV, before)


@pytest.mark.parametrize(("num_tied", "seed"), [*((2, seed) for seed in range(8)), (9, 0), (63, 0)])
def test_top1_of_logits_that_bf16_cannot_tell_apart_is_that_of_fp32(num_tied, seed, device):
    problem, winners_R = tied_problem(2, 64, 997, num_tied, dtype=BF16, device=device, seed=seed)
    rounded = (problem.states_RD @ problem.head_VE.T)[0]
    assert int((rounded == rounded.max()).sum()) == num_tied, "the ties are what this is about"
    out = linear_cross_entropy(
        problem.states_RD, problem.head_VE, problem.labels_R, backend="triton", tuning=RowTuning(block=256)
    )
    assert torch.equal(out.top1_R, winners_R)


@pytest.mark.parametrize("winner", [3, 600], ids=["before the largest", "after it"])
def test_logit_that_was_rounded_one_step_too_low_can_win(winner, device):
    from dflashctl_remote.kernels.linear_ce.kernel import row_pass

    problem, _ = tied_problem(1, 64, 997, 2, dtype=BF16, device=device)
    head = problem.head_VE.clone()
    head[:, 0] *= 0.5
    head[[winner, 400], 0], head[[winner, 400], 1:] = 4.0, 0
    head[winner, 1] = 1.0
    logits_RV = problem.states_RD @ head.T
    logits_RV[0, 400] = 16.125
    top1_R = torch.tensor([-1], device=device)
    cross_entropy_R = torch.empty(1, device=device)
    inputs = logits_RV, problem.states_RD, head, problem.labels_R, None
    row_pass(*inputs, cross_entropy_R, top1_R, wants_grad=False, tuning=RowTuning(block=256))
    assert int(top1_R[0]) == winner


def test_top1_of_equal_rows_of_the_head_is_the_lowest_id(device):
    problem = random_problem(2, 64, 997, dtype=BF16, device=device)
    head = problem.head_VE.clone()
    head[[300, 301, 900]] = 3 * head[reference(*_inputs(problem)).top1_R[0]]
    out = linear_cross_entropy(problem.states_RD, head, problem.labels_R, backend="triton", tuning=RowTuning(block=256))
    assert int(out.top1_R[0]) == 300


def test_state_of_zeros_ties_every_id_and_the_first_wins(device):
    problem = random_problem(2, 64, 131, dtype=FP32, device=device)
    out = linear_cross_entropy(
        torch.zeros_like(problem.states_RD), problem.head_VE, problem.labels_R, backend="triton", tuning=SMALL
    )
    assert out.top1_R.tolist() == [0, 0]
    assert largest_error(out.cross_entropy_R, torch.full((2,), 131.0, device=device).log()) < 1e-5


def test_rows_of_weight_zero_get_a_gradient_of_exactly_zero(device):
    problem = random_problem(8, 64, 997, dtype=BF16, device=device)
    states = problem.states_RD.requires_grad_()
    out = linear_cross_entropy(
        states, problem.head_VE, problem.labels_R, problem.weights_R, backend="triton", tuning=SMALL
    )
    (grad,) = torch.autograd.grad(out.loss_sum, states)
    assert not grad[::7].any() and grad[1:7].any(dim=1).all()


@pytest.mark.parametrize("is_label", [True, False], ids=["the label's", "another's"])
def test_one_huge_logit_costs_no_precision(is_label, device):
    problem = random_problem(1, 64, 997, dtype=FP32, device=device)
    head = problem.head_VE.clone()
    label = problem.labels_R[0]
    head[label if is_label else (label + 1) % 997] = 500 * problem.states_RD[0]
    truth = reference(problem.states_RD, head, problem.labels_R)
    states = problem.states_RD.requires_grad_()
    out = linear_cross_entropy(states, head, problem.labels_R, backend="triton", tuning=SMALL)
    (grad,) = torch.autograd.grad(out.loss_sum, states)
    assert float(truth.logits_RV.max()) > 2e4
    assert largest_error(out.cross_entropy_R, truth.cross_entropy_R) <= 1e-6 * float(truth.logits_RV.max())
    assert largest_error(grad, truth.unit_grad_RD) <= 1e-6 * float(head.abs().max())


def test_gradient_reaches_each_row_by_its_own_factor_if_no_weights_are_given(device):
    problem = random_problem(8, 64, 997, dtype=FP32, device=device)
    truth = reference(*_inputs(problem))
    states = problem.states_RD.requires_grad_()
    out = linear_cross_entropy(states, problem.head_VE, problem.labels_R, backend="triton", tuning=SMALL)
    # A weight that itself depends on the row, as a loss may have it.
    (grad,) = torch.autograd.grad((out.cross_entropy_R**2).sum(), states)
    wanted = 2 * truth.cross_entropy_R[:, None] * truth.unit_grad_RD
    assert relative_error(grad, wanted) < TOLERANCE[FP32]


def test_states_of_another_dtype_get_a_gradient_of_theirs(device):
    problem = random_problem(5, 64, 997, dtype=BF16, device=device)
    states = problem.states_RD.float().requires_grad_()
    out = linear_cross_entropy(states, problem.head_VE, problem.labels_R, backend="triton", tuning=SMALL)
    (grad,) = torch.autograd.grad(out.loss_sum, states)
    truth = reference(*_inputs(problem))
    assert grad.dtype == FP32
    assert relative_error(grad, truth.unit_grad_RD) < TOLERANCE[BF16] * float(truth.logits_RV.abs().max())


@pytest.mark.parametrize(("num_vocab", "num_splits"), [(996, 2), (996, 3), (997, 2)])
@pytest.mark.parametrize("dtype", [FP32, torch.float64], ids=["gradient fp32", "gradient fp64"])
def test_second_product_in_parts_is_the_whole(num_vocab, num_splits, dtype, device):
    problem = random_problem(5, 64, num_vocab, dtype=FP32, device=device)
    errors_RV = problem.states_RD @ problem.head_VE.T
    out_RD = torch.full((5, 64), torch.nan, dtype=dtype, device=device)
    times_head(errors_RV, problem.head_VE, out_RD, num_splits)
    assert relative_error(out_RD, errors_RV.double() @ problem.head_VE.double()) < TOLERANCE[FP32]


def _inputs(problem):
    return problem.states_RD, problem.head_VE, problem.labels_R


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("default")
class TestOnRealShapes:
    WIDTH, VOCAB = 5120, 248_320

    @pytest.mark.parametrize("num_rows", [1, 7, 130])
    def test_bf16_equals_the_reference(self, num_rows, device):
        checks = Checks("linear_ce")
        problem = random_problem(num_rows, self.WIDTH, self.VOCAB, dtype=BF16, device=device, seed=num_rows)
        compare(checks, "bf16", problem, backend="auto", chunk_rows=100, tuning=RowTuning())
        assert not failures(checks)

    @pytest.mark.parametrize("num_tied", [2, 63])
    def test_top1_of_tied_logits_is_that_of_fp32(self, num_tied, device):
        problem, winners_R = tied_problem(130, self.WIDTH, self.VOCAB, num_tied, dtype=BF16, device=device)
        out = linear_cross_entropy(*_inputs(problem), chunk_rows=100)
        assert torch.equal(out.top1_R, winners_R)

    def test_no_row_is_left_as_it_was_allocated(self, device):
        problem = random_problem(300, self.WIDTH, self.VOCAB, dtype=BF16, device=device)
        torch.empty(2**28, device=device).fill_(torch.nan)  # freed, and given out again
        states = problem.states_RD.requires_grad_()
        out = linear_cross_entropy(states, problem.head_VE, problem.labels_R, problem.weights_R, chunk_rows=128)
        (grad,) = torch.autograd.grad(out.loss_sum, states)
        assert grad.isfinite().all() and out.cross_entropy_R.isfinite().all()
