"""Small checks of the linear cross-entropy against fp64, on the device that it is to run on."""

import torch

from dflashctl_remote.kernels.common.checking import (
    TOLERANCE,
    Checks,
    largest_error,
    missing_for_triton,
    relative_error,
)
from dflashctl_remote.kernels.common.problems import Problem, random_problem, tied_problem
from dflashctl_remote.kernels.common.rows import Backend, RowTuning
from dflashctl_remote.kernels.linear_ce.op import linear_cross_entropy
from dflashctl_remote.kernels.linear_ce.reference import reference
from dflashctl_remote.spec.kernels import Check

REAL_WIDTH, REAL_VOCAB = 5120, 248_320
SMALL = RowTuning(block=256)
"""Several tiles even of a small vocabulary."""


def check(device: torch.device) -> tuple[Check, ...]:
    checks = Checks("linear_ce")
    problem = random_problem(9, 64, 1031, dtype=torch.float32, device=device)
    compare(checks, "torch, fp32", problem, backend="torch", chunk_rows=7, tuning=SMALL)
    missing = missing_for_triton(device)
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        if missing:
            checks.skip(f"triton, {name}", missing)
            continue
        problem = random_problem(9, 64, 1031, dtype=dtype, device=device)
        compare(checks, f"triton, {name}", problem, backend="triton", chunk_rows=7, tuning=SMALL)
        _check_ties(checks, f"triton, {name}", dtype, device)
    _check_real_shape(checks, device)
    return tuple(checks.found)


def compare(
    checks: Checks, name: str, problem: Problem, *, backend: Backend, chunk_rows: int, tuning: RowTuning
) -> None:
    """Value, gradient with weights and without, top-1: each against the reference."""
    truth = reference(problem.states_RD, problem.head_VE, problem.labels_R)
    limit = TOLERANCE[problem.head_VE.dtype] * float(truth.logits_RV.abs().max())
    states = problem.states_RD.detach().requires_grad_()
    weighted = linear_cross_entropy(
        states,
        problem.head_VE,
        problem.labels_R,
        problem.weights_R,
        chunk_rows=chunk_rows,
        backend=backend,
        tuning=tuning,
    )
    (grad,) = torch.autograd.grad(weighted.loss_sum, states)
    checks.at_most(f"{name}: cross-entropy", largest_error(weighted.cross_entropy_R, truth.cross_entropy_R), limit)
    wanted = problem.weights_R[:, None] * truth.unit_grad_RD
    checks.at_most(f"{name}: gradient, weights folded in", relative_error(grad, wanted), limit)
    rowwise = linear_cross_entropy(
        states, problem.head_VE, problem.labels_R, chunk_rows=chunk_rows, backend=backend, tuning=tuning
    )
    (grad,) = torch.autograd.grad(rowwise.cross_entropy_R, states, problem.weights_R)
    checks.at_most(f"{name}: gradient, row by row", relative_error(grad, wanted), limit)
    lost = truth.logits_RV.amax(-1) - truth.logits_RV.gather(-1, weighted.top1_R[:, None])[:, 0]
    checks.at_most(f"{name}: top-1 is the largest logit", float(lost.max()), TOLERANCE[torch.float32])


def _check_ties(checks: Checks, name: str, dtype: torch.dtype, device: torch.device) -> None:
    problem, winners_R = tied_problem(9, 64, 1031, 20, dtype=dtype, device=device)
    out = linear_cross_entropy(
        problem.states_RD, problem.head_VE, problem.labels_R, chunk_rows=7, backend="triton", tuning=SMALL
    )
    num_wrong = int((out.top1_R != winners_R).sum())
    checks.that(f"{name}: top-1 of 20 logits tied in bf16", num_wrong == 0, f"{num_wrong} of 9 wrong")


def _check_real_shape(checks: Checks, device: torch.device) -> None:
    name = f"bf16, {REAL_WIDTH} x {REAL_VOCAB:,}"
    if device.type != "cuda":
        checks.skip(f"{name}: values, memory, no waiting", "needs a GPU")
        return
    problem = random_problem(64, REAL_WIDTH, REAL_VOCAB, dtype=torch.bfloat16, device=device)
    compare(checks, name, problem, backend="triton", chunk_rows=48, tuning=RowTuning())
    _check_memory(checks, name, problem, device)


def _check_memory(checks: Checks, name: str, problem: Problem, device: torch.device) -> None:
    num_rows, chunk_rows = 4096, 256
    states = problem.states_RD.repeat(num_rows // len(problem.states_RD), 1).requires_grad_()
    labels, weights = problem.labels_R.repeat(num_rows // 64), problem.weights_R.repeat(num_rows // 64)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    mode, waited = torch.cuda.get_sync_debug_mode(), ""
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = linear_cross_entropy(states, problem.head_VE, labels, weights, chunk_rows=chunk_rows)
        torch.autograd.grad(out.loss_sum, states)
    except RuntimeError as error:
        waited = str(error)
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    checks.that(f"{name}: nothing waits for the GPU", not waited, waited)
    extra = torch.cuda.max_memory_allocated(device) - before
    # A chunk of logits, the gradient as made and as scaled, and what matrix products take.
    limit = chunk_rows * REAL_VOCAB * 2 + 2 * states.numel() * 2 + 2**26
    checks.at_most(f"{name}: bytes beyond a chunk of logits and the gradient", extra, limit)
