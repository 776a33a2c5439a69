"""Small checks of the labels by arg-max against fp64, on the device that they are to be made on."""

import torch

from dflashctl_remote.kernels.common.checking import TOLERANCE, Checks, missing_for_triton
from dflashctl_remote.kernels.common.problems import Problem, random_problem, tied_problem
from dflashctl_remote.kernels.common.rows import Backend, RowTuning
from dflashctl_remote.kernels.label_argmax.op import label_argmax
from dflashctl_remote.kernels.label_argmax.reference import reference
from dflashctl_remote.spec.kernels import Check

SMALL = RowTuning(block=256)
"""Several tiles even of a small vocabulary."""


def check(device: torch.device) -> tuple[Check, ...]:
    checks = Checks("label_argmax")
    _compare(checks, "torch, fp32", random_problem(9, 64, 1031, dtype=torch.float32, device=device), "torch")
    missing = missing_for_triton(device)
    for name, dtype in (("triton, fp32", torch.float32), ("triton, bf16", torch.bfloat16)):
        if missing:
            checks.skip(name, missing)
            continue
        _compare(checks, name, random_problem(9, 64, 1031, dtype=dtype, device=device), "triton")
        problem, winners_R = tied_problem(9, 64, 1031, 20, dtype=dtype, device=device)
        top1_R = label_argmax(problem.states_RD, problem.head_VE, chunk_rows=7, backend="triton", tuning=SMALL)
        num_wrong = int((top1_R != winners_R).sum())
        checks.that(f"{name}: label of 20 logits tied in bf16", num_wrong == 0, f"{num_wrong} of 9 wrong")
    if device.type == "cuda":
        problem = random_problem(64, 5120, 248_320, dtype=torch.bfloat16, device=device)
        _compare(checks, "bf16, 5120 x 248,320", problem, "auto", RowTuning())
    else:
        checks.skip("bf16, 5120 x 248,320", "needs a GPU")
    return tuple(checks.found)


def _compare(checks: Checks, name: str, problem: Problem, backend: Backend, tuning: RowTuning = SMALL) -> None:
    truth_RV = reference(problem.states_RD, problem.head_VE)
    top1_R = label_argmax(problem.states_RD, problem.head_VE, chunk_rows=7, backend=backend, tuning=tuning)
    lost = truth_RV.amax(-1) - truth_RV.gather(-1, top1_R[:, None])[:, 0]
    checks.at_most(f"{name}: the label's logit is the largest", float(lost.max()), TOLERANCE[torch.float32])
