"""The Triton kernel against fp64: in the interpreter on a CPU, compiled where there is a GPU."""

from typing import Any

import numpy as np
import pytest
import torch

from dflashctl_remote.kernels.common.problems import random_problem, tied_problem
from dflashctl_remote.kernels.common.rows import RowTuning
from dflashctl_remote.kernels.label_argmax.op import label_argmax, label_argmax_at
from dflashctl_remote.kernels.label_argmax.reference import reference

# Poisoning memory is a side of deterministic mode; on a GPU that has a word to say about matrix products.
pytestmark = pytest.mark.filterwarnings("default:.*eterministic:UserWarning")

SMALL = RowTuning(block=256)


@pytest.mark.usefixtures("interpreter", "poisoned")
@pytest.mark.parametrize("num_vocab", [997, 4099])
@pytest.mark.parametrize("num_rows", [1, 7, 33])
def test_label_is_the_arg_max_of_the_reference_at_odd_sizes(num_rows, num_vocab, device):
    problem = random_problem(num_rows, 64, num_vocab, dtype=torch.float32, device=device, seed=num_rows)
    top1_R = label_argmax(
        problem.states_RD, problem.head_VE, chunk_rows=10, backend="triton", tuning=RowTuning(block=1024)
    )
    assert torch.equal(top1_R, reference(problem.states_RD, problem.head_VE).argmax(-1))


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("num_tied", [2, 30])
def test_label_of_logits_that_bf16_cannot_tell_apart_is_that_of_fp32(num_tied, device):
    problem, winners_R = tied_problem(3, 64, 997, num_tied, dtype=torch.bfloat16, device=device)
    top1_R = label_argmax(problem.states_RD, problem.head_VE, backend="triton", tuning=SMALL)
    assert torch.equal(top1_R, winners_R)


def test_no_rows_have_no_labels(device):
    problem = random_problem(1, 8, 99, dtype=torch.float32, device=device)
    assert label_argmax(problem.states_RD[:0], problem.head_VE).shape == (0,)
    assert label_argmax_at(problem.states_RD, np.array([], dtype=np.int64), problem.head_VE).shape == (0,)


def test_labels_at_positions_are_those_of_the_positions(device):
    problem = random_problem(20, 16, 99, dtype=torch.float32, device=device)
    positions = np.array([3, 19, 3, 0, 7, 19, 3])
    labels_R = label_argmax_at(problem.states_RD, positions, problem.head_VE, chunk_rows=2)
    everywhere_T = label_argmax(problem.states_RD, problem.head_VE)
    assert torch.equal(labels_R, everywhere_T[torch.from_numpy(positions).to(device)])


def test_each_distinct_position_is_computed_once(device):
    problem = random_problem(20, 16, 99, dtype=torch.float32, device=device)
    num_rows: list[int] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if func is torch.ops.aten.mm.default:
                num_rows.append(len(out))
            return out

    with Watch():
        label_argmax_at(problem.states_RD, np.array([3, 19, 3, 0, 7, 19, 3]), problem.head_VE, chunk_rows=3)
    assert num_rows == [3, 1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("num_rows", [1, 130])
def test_label_at_the_real_shape_has_the_largest_logit(num_rows, device):
    problem = random_problem(num_rows, 5120, 248_320, dtype=torch.bfloat16, device=device)
    truth_RV = reference(problem.states_RD, problem.head_VE)
    top1_R = label_argmax(problem.states_RD, problem.head_VE, chunk_rows=100)
    assert float((truth_RV.amax(-1) - truth_RV.gather(-1, top1_R[:, None])[:, 0]).max()) < 1e-5
