import torch

from dflashctl_remote.kernels.autotune.check import check


def test_a_cpu_checks_what_needs_no_gpu(stock):
    states = [claim.state for claim in check(torch.device("cpu"))]
    assert states == ["passed"] * 3 + ["skipped"] * 2
