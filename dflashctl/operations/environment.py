"""Environments on a host, each named by what is in it: made once, by a job of its own, and never changed afterwards.

`QUESTION` and `question_values` are for scripts of others that ask more than this at once; `read_environments` reads
their answer.
"""

import re
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dflashctl.errors import ArtifactError, ConfigError, JobFailed
from dflashctl.operations.environment_make import make_environment, plan_making
from dflashctl.operations.environment_plan import EnvironmentPlan
from dflashctl.transport.files import read_script, reason
from dflashctl.transport.shell import Answer, Script, Shell

Say = Callable[[str], None]
OLDEST_PYTHON = (3, 11)
UV_CURE = "curl -LsSf https://astral.sh/uv/install.sh | sh"
QUESTION_S = 60.0
"""An interpreter on a cold network filesystem takes its time."""
_HERE = Path(__file__).parent
QUESTION = read_script(_HERE, "environment_question.sh")
"""Functions of sh; `environment_question` prints env_...=... lines."""


@dataclass(frozen=True)
class HostEnvironments:
    """What a host answered: what there is to make environments with, and which there are."""

    folder: str
    """<workdir>/envs, absolute."""
    complete: tuple[str, ...]
    broken: tuple[str, ...]
    """Complete once, and without an interpreter now."""
    uv: str
    """Path; empty: not there. The same for `python`, and for its version if it does not run."""
    python: str
    python_version: str
    platform: str
    has_venv: bool
    missing_modules: tuple[str, ...]


@dataclass(frozen=True)
class EnvironmentOnHost:
    python: str
    """Absolute, on the host: what jobs run under."""
    name: str
    """Empty: an interpreter as it is."""
    was_there: bool
    wall_s: float


def question_values(plan: EnvironmentPlan, workdir: str) -> tuple[tuple[str, str], ...]:
    """Values of the variables that `environment_question` reads; `workdir` as in hosts.yaml."""
    return (
        ("workdir", workdir),
        ("env_kind", plan.kind or ""),
        ("env_python", plan.python),
        ("env_uv", plan.uv),
        ("env_modules", "" if plan.kind else " ".join(plan.modules)),
    )


def read_environments(answer: Answer) -> HostEnvironments | None:
    """What `environment_question` said, out of an answer that may say more; None if it said nothing."""
    lines = answer.out.decode("utf-8", "surrogateescape").splitlines()
    pairs = [(key, value) for key, found, value in (line.partition("=") for line in lines) if found]
    told = dict(pairs)
    if "env_folder" not in told:
        return None
    return HostEnvironments(
        folder=told["env_folder"],
        complete=tuple(value for key, value in pairs if key == "env_complete"),
        broken=tuple(value for key, value in pairs if key == "env_broken"),
        uv=told.get("env_uv", ""),
        python=told.get("env_python", ""),
        python_version=told.get("env_python_version", ""),
        platform=told.get("env_platform", ""),
        has_venv=told.get("env_has_venv") == "1",
        missing_modules=tuple(told.get("env_missing", "").split()),
    )


def ask_environments(shell: Shell, workdir: str, plan: EnvironmentPlan) -> HostEnvironments:
    """One question. Raises what `shell.run` raises, JobFailed if the answer is none."""
    script = Script("ask for environments", QUESTION + "\nenvironment_question\n", question_values(plan, workdir))
    answer = shell.run(script, timeout_s=QUESTION_S)
    found = read_environments(answer)
    if found is None:
        raise JobFailed(
            f"{shell.name} was asked for environments and said nothing of use: {reason(answer)}", host=shell.name
        )
    return found


def find_environment(plan: EnvironmentPlan, found: HostEnvironments) -> EnvironmentOnHost | None:
    """The one that jobs are to use, None if it has to be made first. Changes nothing.

    Raises ConfigError, with its cure, if the host can have none, ArtifactError if it has a broken one.
    """
    _check_interpreter(plan, found)
    if plan.kind is None:
        return EnvironmentOnHost(found.python, "", was_there=True, wall_s=0.0)
    name = plan.named(found.python_version, found.platform)
    if name in found.broken:
        raise ArtifactError(
            f"environment {name} on {plan.host} is broken: the interpreter that it was made with is gone",
            hint=f"on {plan.host}: rm -r {shlex.quote(f'{found.folder}/{name}')}; it is then made anew",
        )
    if name in found.complete:
        return EnvironmentOnHost(f"{found.folder}/{name}/bin/python", name, was_there=True, wall_s=0.0)
    return None


def _check_interpreter(plan: EnvironmentPlan, found: HostEnvironments) -> None:
    host, python = plan.host, found.python or plan.python
    if plan.kind == "uv" and not found.uv:
        places = plan.uv if "/" in plan.uv else f"PATH, ~/.local/bin/{plan.uv} and ~/.cargo/bin/{plan.uv}"
        raise ConfigError(
            f"{host} says env: uv, and uv is not there (looked in {places})",
            hint=f"on {host}: {UV_CURE}",
        )
    if not found.python:
        cure = f"on {host}: uv python install 3.12; then python: '3.12'" if plan.kind == "uv" else "python: a path"
        raise ConfigError(f"{host} has no interpreter {plan.python}", hint=f"{cure}, for {host} in hosts.yaml")
    if not found.python_version:
        raise ConfigError(f"{python} on {host} does not run", hint=f"name another python for {host} in hosts.yaml")
    if tuple(int(part) for part in re.findall(r"\d+", found.python_version)[:2]) < OLDEST_PYTHON:
        cure = "uv python install 3.12, and python: '3.12'" if plan.kind == "uv" else "python: the path of a newer one"
        raise ConfigError(
            f"jobs need Python 3.11 or newer, and {python} on {host} is {found.python_version}",
            hint=f"{cure}, for {host} in hosts.yaml",
        )
    if plan.kind == "pip" and not found.has_venv:
        raise ConfigError(
            f"{host} says env: pip, and {python} there has no venv with pip in it",
            hint=f"on {host}, if it is Debian: apt-get install python3-venv; or env: uv for {host} in hosts.yaml",
        )
    if plan.kind is None and found.missing_modules:
        raise ConfigError(
            f"jobs on {host} need {', '.join(found.missing_modules)}, not found for {python}",
            hint=f"env: uv, for {host} in hosts.yaml, or install 'dflashctl[train]' there",
        )


def ensure_environment(
    shell: Shell,
    workdir: str,
    plan: EnvironmentPlan,
    supervisor: str,
    say: Say,
    *,
    allow_create: bool = True,
    known: HostEnvironments | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> EnvironmentOnHost:
    """The environment that jobs are to use, made now if it is not there; whoever else wants it waits for the same job.

    `supervisor`: folder of the bundle's scripts on the host. `known`: the host's answer if it was asked already.
    Raises as `find_environment`; ConfigError if it would have to be made and `allow_create` is not given; JobFailed if
    making it failed; LinkLost if the host does not answer any more: it then goes on there.
    """
    found = known or ask_environments(shell, workdir, plan)
    there = find_environment(plan, found)
    if there is not None:
        return there
    name = plan.named(found.python_version, found.platform)
    if not allow_create:
        raise ConfigError(
            f"environment {name} would have to be made on {plan.host}, which is protected",
            hint=f"add --touch {plan.host}",
        )
    began_s = time.monotonic()
    making = plan_making(plan, name=name, folder=found.folder, python=found.python, uv=found.uv, supervisor=supervisor)
    what = f"{len(plan.requirements)} requirement{'' if len(plan.requirements) == 1 else 's'}"
    say(f"{plan.host}: making environment {name} ({plan.kind}, {what})")
    make_environment(shell, making, say, pause)
    say(f"{plan.host}: environment {name} is there after {time.monotonic() - began_s:.0f} s")
    return EnvironmentOnHost(
        f"{found.folder}/{name}/bin/python", name, was_there=False, wall_s=time.monotonic() - began_s
    )
