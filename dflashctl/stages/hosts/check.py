"""The doctor's visit to one host: what is asked, in which order, and what is said if one question gets no answer.

Each question that can hang (disks, the GPUs' driver, an interpreter) is a script of its own, so that it hides no more
than itself. Nothing is changed, no process is signalled.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dflashctl.bundle import bundle_root
from dflashctl.config.hosts import HostSpec
from dflashctl.defaults import LOCAL
from dflashctl.errors import LinkLost
from dflashctl.facts import doctor
from dflashctl.facts.disks import disk_findings
from dflashctl.facts.finding import Finding, Told
from dflashctl.facts.gpu_holders import HeldGpu, gpu_findings, read_held_gpus
from dflashctl.operations import environment
from dflashctl.operations.environment_plan import plan_environment
from dflashctl.stages.hosts.environment import (
    TORCH_S,
    environment_verdict,
    secrets_finding,
    torch_finding,
    torch_script,
)
from dflashctl.transport.files import read_script
from dflashctl.transport.shell import Answer, Script, Shell
from dflashctl.transport.ssh_config import Route

SYSTEM_S, DISKS_S, GPUS_S = 30.0, 20.0, 100.0
_FACTS = Path(doctor.__file__).parent


@dataclass(frozen=True)
class Examination:
    """What the doctor found on a host that answered."""

    host: str
    connect_s: float | None
    """None: this machine."""
    rtt_s: float
    """Of a script that does nothing, over the open connection."""
    findings: tuple[Finding, ...]
    gpus: tuple[HeldGpu, ...]
    machine: tuple[str, ...] | None = None
    """Boot, PID namespace and name; hosts of which all of it is equal are one. None: not all of it was told."""

    @property
    def is_bad(self) -> bool:
        return any(finding.level == "bad" for finding in self.findings)


def examine(
    shell: Shell,
    spec: HostSpec,
    *,
    way: str,
    unset_secrets: tuple[str, ...] = (),
    clock_s: Callable[[], float] = time.time,
    elapsed_s: Callable[[], float] = time.monotonic,
) -> Examination:
    """`way`: how the host is reached, in words. Raises HostUnreachable, also if the link breaks on the way."""
    began_s = elapsed_s()
    hello = shell.run(Script("doctor: hello", ":"))
    first_s = elapsed_s() - began_s
    before_s, began_s = clock_s(), elapsed_s()
    clock = shell.run(Script("doctor: clock", "date +%s.%N"))
    rtt_s = elapsed_s() - began_s
    connect_s = max(0.0, first_s - rtt_s) if shell.name != LOCAL else None
    findings = [
        doctor.link_finding(way, rtt_s, connect_s),
        doctor.noise_finding(hello.num_noise_bytes, hello.noise),
        doctor.clock_finding(clock.out.decode("utf-8", "replace"), before_s, before_s + rtt_s),
    ]
    visit = _Visit(shell, findings)
    values = (("workdir", spec.workdir),)
    system = visit.ask("system", _system_script(), SYSTEM_S, "look at its load, and at /proc")
    if system:
        findings += doctor.system_findings(system)
    cure = f"is {spec.workdir} on a network file system that hangs? df there shows it"
    if told := visit.ask("disks", _script("disks", values, "doctor_disks", "doctor.sh"), DISKS_S, cure):
        findings += disk_findings(told)
    gpus: tuple[HeldGpu, ...] = ()
    cure = "the driver hangs: look at dmesg for Xid or NVRM lines; mostly only a reboot of the machine helps"
    if told := visit.ask("GPUs", _gpu_script(values), GPUS_S, cure):
        gpus = read_held_gpus(told)
        findings += gpu_findings(told, gpus)
    _environment(visit, spec, gpus)
    findings += secrets_finding(spec, unset_secrets)
    return Examination(shell.name, connect_s, rtt_s, tuple(findings), gpus, _machine(system))


def way_in_words(route: Route) -> str:
    """user@address:port, and what lies between."""
    last = route[-1]
    port = "" if last.port == 22 else f":{last.port}"
    address = f"[{last.address}]" if ":" in last.address else last.address
    words = f"{last.user}@{address}{port}"
    hops = [hop.alias if hop.alias == hop.address else f"{hop.alias} ({hop.address})" for hop in route[:-1]]
    if route[0].proxy_command is not None:
        hops.insert(0, "a ProxyCommand")
    return f"{words} via {', '.join(hops)}" if hops else f"{words} directly"


def _machine(system: Told | None) -> tuple[str, ...] | None:
    told = tuple(system.one(key) for key in ("boot_id", "pid_namespace", "machine")) if system else ()
    return told if told and all(told) else None


class _Visit:
    def __init__(self, shell: Shell, findings: list[Finding]) -> None:
        self.shell = shell
        self.findings = findings

    def answer(self, topic: str, script: Script, timeout_s: float, cure: str) -> Answer | None:
        """None, and a finding, if no answer comes from a host that answers other questions."""
        try:
            return self.shell.run(script, timeout_s=timeout_s)
        except LinkLost:
            self.shell.run(Script("doctor: hello", ":"))
        self.findings.append(Finding(topic, "bad", f"no answer within {timeout_s:.0f} s", cure))
        return None

    def ask(self, topic: str, script: Script, timeout_s: float, cure: str) -> Told | None:
        answer = self.answer(topic, script, timeout_s, cure)
        return None if answer is None else Told.read(answer.out)


def _environment(visit: _Visit, spec: HostSpec, gpus: tuple[HeldGpu, ...]) -> None:
    plan = plan_environment(spec, visit.shell.name)
    text = environment.QUESTION + "\nenvironment_question\n"
    script = Script("doctor: environment", text, environment.question_values(plan, spec.workdir))
    cure = f"is {spec.python} on a network file system that hangs?"
    answer = visit.answer("python", script, environment.QUESTION_S, cure)
    if answer is None:
        return
    verdict = environment_verdict(spec, plan, environment.read_environments(answer))
    visit.findings += verdict.findings
    if verdict.python is not None:
        cure = f"time it on the host: {verdict.python} -c 'import torch'"
        if told := visit.ask("torch", torch_script(verdict.python), TORCH_S, cure):
            visit.findings.append(torch_finding(told, gpus, verdict.python))


def _script(name: str, values: tuple[tuple[str, str], ...], call: str, *files: str) -> Script:
    return Script(f"doctor: {name}", f"{read_script(_FACTS, *files)}\n{call}\n", values)


def _system_script() -> Script:
    tools = " ".join((*doctor.NEEDED_TOOLS, *doctor.USEFUL_TOOLS))
    boot = 'say boot_id "$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)"'
    call = f"doctor_identity; doctor_tools; doctor_processes; {boot}; doctor_sessions"
    return _script("system", (("probe_tools", tools),), call, "doctor.sh")


def _gpu_script(values: tuple[tuple[str, str], ...]) -> Script:
    supervisor = read_script(bundle_root() / "dflashctl_remote" / "supervisor", "proc.sh", "lease.sh")
    ours = read_script(_FACTS, "doctor.sh", "gpu_holders.sh")
    call = 'say uid "$(id -u)"; tell_gpu_holders'
    return Script("doctor: GPUs", f"{supervisor}\n{ours}\nlease_root=\n{call}\n", values)
