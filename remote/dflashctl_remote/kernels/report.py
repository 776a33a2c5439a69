"""Checks kernels one after the other and, if asked, times those that are right."""

import platform
from collections.abc import Callable
from importlib import metadata

import torch

from dflashctl_remote.kernels.registry import kernels_named
from dflashctl_remote.spec.errors import BadInput
from dflashctl_remote.spec.events import Event, Notice, Progress
from dflashctl_remote.spec.kernels import Bench, Check, KernelsReport, KernelsSpec
from dflashctl_remote.target.load import resolve_device

_PACKAGES = ("torch", "triton", "liger-kernel", "flash-linear-attention")


def make_report(spec: KernelsSpec, emit: Callable[[Event], None]) -> KernelsReport:
    """Raises BadInput for an unknown kernel, a GPU that isn't there, and a bench without a GPU."""
    kernels = kernels_named(spec.kernels)
    device = resolve_device(spec.device)
    if spec.action == "bench" and device.type != "cuda":
        raise BadInput(
            "timing kernels needs a GPU, and torch sees none here or was told to use the CPU",
            hint="dflashctl kernels test checks what a CPU can",
        )
    checks: list[Check] = []
    benches: list[Bench] = []
    for done, kernel in enumerate(kernels):
        emit(Progress(what=f"kernels {spec.action}", done=done, total=len(kernels), unit="kernels"))
        found = kernel.check(device)
        checks.extend(found)
        if spec.action == "test" or kernel.bench is None:
            continue
        if any(check.state == "failed" for check in found):
            emit(Notice(message=f"{kernel.name} is not timed: a check of it failed"))
            continue
        benches.extend(kernel.bench(device))
    emit(Progress(what=f"kernels {spec.action}", done=len(kernels), total=len(kernels), unit="kernels"))
    return KernelsReport(
        action=spec.action,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        versions={"python": platform.python_version()} | _versions(),
        checks=tuple(checks),
        benches=tuple(benches),
    )


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
