"""Whether jobs would find what they need on a host: the same question that a start asks, and torch against the GPUs."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dflashctl.config.hosts import HostSpec, Role
from dflashctl.errors import ArtifactError, ConfigError
from dflashctl.facts import finding
from dflashctl.facts.doctor import shown
from dflashctl.facts.finding import Finding, Level, Told
from dflashctl.facts.gpu_holders import HeldGpu
from dflashctl.operations.environment import OLDEST_PYTHON, EnvironmentOnHost, HostEnvironments, find_environment
from dflashctl.operations.environment_plan import EnvironmentPlan
from dflashctl.transport.files import read_script
from dflashctl.transport.shell import Script

RUNS_JOBS: tuple[Role, ...] = ("train", "evaluate", "generate", "serve")
TORCH_S = 90.0
"""A cold import over a network file system takes its time."""


@dataclass(frozen=True)
class EnvironmentVerdict:
    findings: tuple[Finding, ...]
    python: str | None = None
    """What jobs would run under now; None if there is nothing yet, or nothing fit."""


def environment_verdict(spec: HostSpec, plan: EnvironmentPlan, found: HostEnvironments | None) -> EnvironmentVerdict:
    if found is None:
        return EnvironmentVerdict((Finding("python", "unknown", "its answer says nothing of interpreters"),))
    lines: list[Finding] = []
    if _is_recent(found.python_version):
        lines.append(Finding("python", "ok", f"{found.python_version} ({shown(found.python)})"))
    if plan.kind == "uv" and found.uv:
        lines.append(Finding("uv", "ok", shown(found.uv)))
    try:
        there = find_environment(plan, found)
    except (ConfigError, ArtifactError) as error:
        return EnvironmentVerdict((*lines, _unfit(spec, error)))
    lines.append(_environment(plan, found, there))
    return EnvironmentVerdict(tuple(lines), there.python if there is not None else None)


def torch_script(python: str) -> Script:
    """`python`: an interpreter of the host."""
    text = read_script(Path(finding.__file__).parent, "torch_probe.sh")
    return Script("doctor: torch", text, (("python", python),))


def torch_finding(told: Told, gpus: tuple[HeldGpu, ...], python: str) -> Finding:
    if told.has("torch_failed") or not told.has("torch"):
        why = told.one("torch_failed") or f"the interpreter ended with exit code {told.one('torch_exit') or 'unknown'}"
        return Finding("torch", "bad", f"cannot be imported: {shown(why)}", f"on the host: {python} -c 'import torch'")
    version, cuda = told.one("torch"), told.one("torch_cuda") or told.one("torch_hip")
    text = f"{shown(version)}, {f'CUDA {shown(cuda)}' if cuda else 'a CPU build'}"
    if not gpus:
        return Finding("torch", "ok", text)
    if not cuda:
        return Finding("torch", "bad", f"{text}, and there are {len(gpus)} GPUs", "install a CUDA build: requirements:")
    seen = int(told.one("torch_gpus") or 0)
    if seen == 0:
        driver = next((gpu.driver for gpu in gpus if gpu.driver), "unknown")
        text = f"{text}: sees none of {len(gpus)} GPUs (driver {driver})"
        return Finding("torch", "bad", text, "a newer driver, or a torch that was built for an older CUDA")
    missing = sorted(_unbuilt(gpus, told.one("torch_architectures").split()))
    if missing:
        text = f"{text}: has no kernels for {', '.join(missing)}"
        return Finding("torch", "bad", text, "a torch that was built for a newer CUDA; Blackwell needs 12.8 or later")
    level: Level = "ok" if seen == len(gpus) else "note"
    return Finding("torch", level, f"{text}, sees {seen} of {len(gpus)} GPUs")


def secrets_finding(spec: HostSpec, unset: tuple[str, ...]) -> Iterator[Finding]:
    """`unset`: the host's secrets that the environment here does not hold."""
    if unset:
        text = f"{', '.join(unset)} not set in the environment here: a start would be refused"
        yield Finding("secrets", "note", text, f"export {unset[0]}=..., here, before a start")


def _environment(plan: EnvironmentPlan, found: HostEnvironments, there: EnvironmentOnHost | None) -> Finding:
    if plan.kind is None:
        return Finding("environment", "ok", f"the interpreter as it is has {', '.join(plan.modules)}")
    if there is None:
        name = plan.named(found.python_version, found.platform)
        text = f"{name} is not there yet: the first start makes it ({plan.kind}, {len(plan.requirements)} requirements)"
        return Finding("environment", "note", text)
    return Finding("environment", "ok", f"{there.name} is there ({plan.kind})")


def _is_recent(version: str) -> bool:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2]) >= OLDEST_PYTHON


def _unfit(spec: HostSpec, error: ConfigError | ArtifactError) -> Finding:
    """Bad where jobs are to run; a host that is a jump or a store needs none of it."""
    if spec.roles and not set(spec.roles) & set(RUNS_JOBS):
        return Finding("environment", "ok", f"{error.message}; not needed to {' and '.join(spec.roles)}")
    level: Level = "bad" if spec.roles or spec.env else "note"
    return Finding("environment", level, error.message, error.hint or "see docs/hosts.md")


def _unbuilt(gpus: tuple[HeldGpu, ...], architectures: list[str]) -> set[str]:
    """Compute capabilities that torch has neither kernels for nor PTX of an older one to make them from."""
    exact = {name.removeprefix("sm_").rstrip("af") for name in architectures if name.startswith("sm_")}
    ptx = [int(name.removeprefix("compute_").rstrip("af")) for name in architectures if name.startswith("compute_")]
    missing = set()
    for capability in {gpu.compute_capability for gpu in gpus if gpu.compute_capability}:
        number = capability.replace(".", "")
        # Kernels of the same generation run on a later minor of it.
        same = any(name[:-1] == number[:-1] and name[-1] <= number[-1] for name in exact if name)
        if exact and not same and not any(version <= int(number) for version in ptx):
            missing.add(f"sm_{number}")
    return missing
