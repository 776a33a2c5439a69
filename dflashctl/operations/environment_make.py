"""Making an environment: a job of its own on the host, which neither a cut link nor a killed operator stops or doubles.

Whoever wants the same environment waits for the same job."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dflashctl import facts
from dflashctl.errors import ConfigError, HostUnreachable, JobFailed, LinkLost
from dflashctl.operations.environment_plan import EnvironmentPlan, masked
from dflashctl.operations.launch import launch, supervisor_text
from dflashctl.operations.supervised import SupervisedJob
from dflashctl.transport.files import read_script, reason
from dflashctl.transport.shell import RUN_S, Script, Shell

Say = Callable[[str], None]
T = TypeVar("T")
WAIT_S = 5
"""The host answers when the job has ended, or after so long."""
NUM_SILENT = 6
"""So many times in a row it may not answer."""
SILENCE_S = 5.0
LOG_LINES = 30
_HERE = Path(__file__).parent
_FACTS = Path(facts.__file__).parent


@dataclass(frozen=True)
class Making:
    host: str
    name: str
    target: str
    """Folder of the environment, on the host."""
    job: SupervisedJob


def plan_making(plan: EnvironmentPlan, *, name: str, folder: str, python: str, uv: str, supervisor: str) -> Making:
    """`folder`: <workdir>/envs there; `supervisor`: the folder of the bundle's scripts there. Pure."""
    workdir, target, own = folder.removesuffix("/envs"), f"{folder}/{name}", f"{folder}/.making-{name}"
    record = {
        "name": name,
        "kind": plan.kind,
        "python": python,
        "requirements": plan.requirements,
        "install_args": plan.install_args,
    }
    job = SupervisedJob(
        name=f"environment {name}",
        folder=own,
        argv=("/bin/sh", f"{own}/make.sh", *plan.argv),
        env=(
            *plan.env,
            ("MAKE_KIND", plan.kind or ""),
            ("MAKE_UV", uv),
            ("MAKE_PYTHON", python),
            ("MAKE_TARGET", target),
            ("MAKE_CACHE", f"{workdir}/cache"),
            ("MAKE_RECORD", json.dumps(record)),
        ),
        files=(("make.sh", read_script(_HERE, "environment_make.sh")),),
        supervisor=supervisor,
        workdir=workdir,
        secrets=plan.secrets,
        grace_s=10.0,
    )
    return Making(plan.host, name, target, job)


def make_environment(shell: Shell, making: Making, say: Say, pause: Callable[[float], None] = time.sleep) -> None:
    """Return when it is complete, whoever made it. Raises JobFailed with the end of the log, or LinkLost."""
    waiting = _Waiting(shell, making, say, pause)
    before = waiting.ask(wait_s=0)
    is_again = before.state == "failed"
    if is_again:
        say(f"{making.host}: environment {making.name} could not be made before; trying again")
    if is_again or before.state == "absent":
        try:
            launch(shell, making.job, is_resume=is_again, say=say, pause=pause)
        except (JobFailed, ConfigError, LinkLost):
            # It ended, well or badly, before it counted as started; or another operator was faster; or it is not known.
            if waiting.ask(wait_s=0).attempt == before.attempt:
                raise
    waiting.for_the_end()


@dataclass(frozen=True)
class _Seen:
    state: str
    """complete, building, failed or absent."""
    attempt: str
    """Number of the newest, empty if there was none."""
    last: str
    """Line of the log."""
    log: str
    """Its end, after a failure."""


@dataclass(frozen=True)
class _Waiting:
    shell: Shell
    making: Making
    say: Say
    pause: Callable[[float], None]

    def for_the_end(self) -> None:
        said, wait_s = "", 1
        while (seen := self.ask(wait_s=wait_s)).state == "building":
            wait_s = min(WAIT_S, wait_s + 1)
            if seen.last not in ("", said):
                self.say(f"{self.making.host}: {seen.last}")
                said = seen.last
        if seen.state != "complete":
            raise self._failure(seen)

    def ask(self, *, wait_s: int) -> _Seen:
        script = Script(
            "wait for an environment",
            supervisor_text("proc.sh") + read_script(_FACTS, "run_seen.sh") + read_script(_HERE, "environment_wait.sh"),
            (("folder", self.making.job.folder), ("target", self.making.target), ("wait_s", str(wait_s))),
        )
        answer = self.patiently(lambda: self.shell.run(script, timeout_s=RUN_S + wait_s))
        head, _, log = answer.out.decode("utf-8", "replace").partition("\n\n")
        told = dict(line.partition("=")[::2] for line in head.splitlines())
        state = told.get("env", "")
        if state not in ("complete", "building", "failed", "absent"):
            raise JobFailed(
                f"{self.making.host} was asked for environment {self.making.name} and said nothing of use: "
                f"{reason(answer)}",
                host=self.making.host,
            )
        return _Seen(state, told.get("attempt", ""), masked(told.get("last", "")), masked(log))

    def patiently(self, ask: Callable[[], T]) -> T:
        """Through a link that breaks: everything asked for here may be asked for twice."""
        for num_left in reversed(range(NUM_SILENT)):
            try:
                return ask()
            except HostUnreachable as error:
                if not num_left:
                    raise LinkLost(
                        f"{self.making.host} does not answer any more while environment {self.making.name} is made",
                        host=self.making.host,
                        hint="it goes on there; the same command waits for it",
                    ) from error
                self.pause(SILENCE_S)
        raise AssertionError("unreachable")

    def _failure(self, seen: _Seen) -> JobFailed:
        lines = "\n".join(seen.log.strip().splitlines()[-LOG_LINES:]) or "(empty)"
        return JobFailed(
            f"environment {self.making.name} could not be made on {self.making.host}; the end of its log:\n{lines}",
            host=self.making.host,
            hint=f"its log is {self.making.job.folder}/log on {self.making.host}; the same command tries again",
        )
