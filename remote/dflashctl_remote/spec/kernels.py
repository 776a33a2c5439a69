"""Kernels: the job that checks and times them where they are to run, and its report."""

from typing import Literal

from pydantic import Field

from dflashctl_remote.spec.base import Spec
from dflashctl_remote.spec.train import Device


class KernelsSpec(Spec):
    action: Literal["test", "bench"]
    """bench checks first, and times only what is right."""
    kernels: tuple[str, ...] = ()
    """Names out of the registry; none: all."""
    output: str
    """JSON file that is written: a KernelsReport."""
    device: Device = "auto"
    """cpu: what Triton's interpreter can run, which is slow and exact."""
    num_threads: int | None = Field(default=None, gt=0)


class Check(Spec):
    """One claim about a kernel, tried."""

    kernel: str
    claim: str
    state: Literal["passed", "failed", "skipped"]
    detail: str = ""
    """What was found where it failed; what is missing where it was skipped."""


class Arm(Spec):
    """One way to do the work of a benchmark."""

    name: str
    role: Literal["ours", "floor", "other"]
    """floor: less than the whole work, which nothing that does all of it can be faster than."""
    median_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    """Quartiles."""
    num_runs: int = 0
    extra_bytes: int | None = None
    """Peak of allocated GPU memory above what lay there before."""
    detail: str = ""
    """Why it has no figures, or what is different about it."""


class Bar(Spec):
    """What was set out to be reached."""

    what: str
    limit: float
    found: float
    unit: str = ""

    @property
    def is_met(self) -> bool:
        return self.found <= self.limit


class Bench(Spec):
    kernel: str
    shape: str
    arms: tuple[Arm, ...]
    bars: tuple[Bar, ...] = ()

    @property
    def floor_ms(self) -> float | None:
        """Of the first arm that is a floor and was measured."""
        return next((arm.median_ms for arm in self.arms if arm.role == "floor" and arm.median_ms), None)


class KernelsReport(Spec):
    schema_version: Literal[1] = 1
    action: Literal["test", "bench"]
    device: str
    """cpu, or the GPU's name."""
    versions: dict[str, str]
    """Of python, torch, triton, and what else was compared with."""
    checks: tuple[Check, ...]
    benches: tuple[Bench, ...] = ()

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.state == "failed")
