"""Claims about kernels, tried on a device: what passed, what failed and by how much, what could not be tried."""

from dataclasses import dataclass, field
from importlib.util import find_spec

import torch
from torch import Tensor

from dflashctl_remote.spec.kernels import Check

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2.0**-8}
"""Of what is made from logits, against fp64, as a share of the largest logit: one step of bf16 there."""


def missing_for_triton(device: torch.device) -> str:
    """Why Triton cannot run on the device; empty if it can. On a CPU it runs in its interpreter."""
    if find_spec("triton") is None:
        return "triton is not installed here"
    if device.type == "cuda":
        return ""
    from triton import knobs

    return "" if knobs.runtime.interpret else "needs a GPU, or TRITON_INTERPRET=1 before Triton is imported"


def relative_error(found: Tensor, truth: Tensor) -> float:
    """Norm of the difference over norm of the truth; 0 if both are zero, infinite if something is not finite."""
    difference = (found.detach().double() - truth.double()).norm()
    size = truth.double().norm()
    if not bool(torch.isfinite(difference)):
        return float("inf")
    return float(difference / size) if bool(size > 0) else float(difference)


def largest_error(found: Tensor, truth: Tensor) -> float:
    """Largest absolute difference; infinite if something is not finite."""
    difference = (found.detach().double() - truth.double()).abs()
    return float(difference.max()) if bool(torch.isfinite(difference).all()) else float("inf")


@dataclass
class Checks:
    """Collects the checks of one kernel."""

    kernel: str
    found: list[Check] = field(default_factory=list)

    def at_most(self, claim: str, error: float, limit: float) -> None:
        passed = error <= limit
        detail = "" if passed else f"found {error:.3g}, at most {limit:.3g} was wanted"
        self.found.append(Check(kernel=self.kernel, claim=claim, state="passed" if passed else "failed", detail=detail))

    def that(self, claim: str, is_true: bool, detail: str) -> None:
        """`detail` is kept if it is not true."""
        state = "passed" if is_true else "failed"
        self.found.append(Check(kernel=self.kernel, claim=claim, state=state, detail="" if is_true else detail))

    def skip(self, claim: str, why: str) -> None:
        self.found.append(Check(kernel=self.kernel, claim=claim, state="skipped", detail=why))
