"""Starting a supervised job on a host: once, whatever the connection does meanwhile, and told only when it runs."""

import re
import secrets as random
import shlex
import time
from collections.abc import Callable
from math import ceil
from pathlib import Path

from dflashctl.bundle import bundle_root
from dflashctl.errors import ConfigError, HostUnreachable, JobFailed, LinkLost
from dflashctl.operations.supervised import Launched, SupervisedJob
from dflashctl.transport.files import read_script
from dflashctl.transport.shell import Answer, Script, Shell
from dflashctl_remote.spec.process import ExitRecord, ProcessToken

Say = Callable[[str], None]
SETTLE_S = 0.5
"""A job that ends sooner has not come up."""
LAUNCH_S = 60.0
DELAYS_S = (1.0, 2.0, 5.0, 10.0, 15.0, 20.0)
"""Between tries, when the link was lost before the answer came."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
GPU = re.compile(r"[A-Za-z0-9._-]+")
FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
NONCE = re.compile(r"[0-9a-f]+")
RESERVED = ("token.json", "exit.json", "stop.requested", "events.jsonl", "log")
IN_PROGRESS = 31
"""Exit code: an earlier sending of the same script is still at work there."""


def supervisor_text(*names: str) -> str:
    """Scripts of the bundle's supervisor that the operator's own scripts begin with."""
    return read_script(bundle_root() / "dflashctl_remote" / "supervisor", *names)


def launch_script(job: SupervisedJob, nonce: str, *, is_resume: bool = False, settle_s: float = SETTLE_S) -> Script:
    """All that a launch does on the host. Sent again with the same nonce it starts nothing twice.

    `nonce`: hexadecimal digits. Raises ConfigError for a job that cannot be written down for a shell.
    """
    assert NONCE.fullmatch(nonce), nonce
    _check(job)
    names = [name for name, _ in job.files]
    files = (*job.files, ("job.sh", _job_text(job)))
    values = (
        ("folder", job.folder),
        ("nonce", nonce),
        ("resume", "1" if is_resume else "0"),
        ("supervisor", job.supervisor),
        ("workdir", job.workdir),
        ("sh", job.sh),
        ("conf", _conf_text(job, nonce, settle_s)),
        ("gpus", " ".join(sorted(job.gpus))),
        ("needs_port", "1" if job.needs_port else "0"),
        ("settle_cs", str(ceil(settle_s * 100))),
        ("num_files", str(len(names) + 2)),
        *((f"file_{n}_name", name) for n, (name, _) in enumerate(files)),
        *((f"file_{n}_text", text) for n, (_, text) in enumerate(files)),
        (f"file_{len(files)}_name", "secrets.env"),
    )
    hidden = ((f"file_{len(files)}_text", "".join(_export(name, value) for name, value in job.secrets)),)
    text = supervisor_text("proc.sh", "lease.sh") + read_script(Path(__file__).parent, "launch.sh")
    return Script(f"launch {job.name}", text, values, hidden)


def launch(
    shell: Shell,
    job: SupervisedJob,
    *,
    nonce: str | None = None,
    is_resume: bool = False,
    settle_s: float = SETTLE_S,
    say: Say = lambda line: None,
    pause: Callable[[float], None] = time.sleep,
) -> Launched:
    """Start the job under its supervisor; returns when it has outlived its first moments.

    A lost link is no end: the host is asked again what became of it, with the same nonce, so that it is never started
    twice. Raises ConfigError if the run is there already or a GPU is another run's, JobFailed if it did not come up,
    HostUnreachable if nothing was started, LinkLost if that could not be found out.
    """
    script = launch_script(job, nonce or random.token_hex(16), is_resume=is_resume, settle_s=settle_s)
    unknown: HostUnreachable | None = None
    for delay_s in (*DELAYS_S, None):
        try:
            answer = shell.run(script, timeout_s=LAUNCH_S + settle_s)
        except HostUnreachable as error:
            if unknown is None and not isinstance(error, LinkLost):
                raise
            unknown = error
            what = "the answer was lost" if isinstance(error, LinkLost) else "it does not answer"
        else:
            if answer.code != IN_PROGRESS:
                return _outcome(shell.name, job, answer)
            what = "it is still being started there"
        if delay_s is None:
            break
        say(f"{job.name} on {shell.name}: {what}; asking again in {delay_s:g} s")
        pause(delay_s)
    raise LinkLost(
        f"whether {job.name} was started on {shell.name} is unknown: {unknown or 'its start takes too long'}",
        host=shell.name,
        hint=f"dflashctl train list --host {shell.name} tells, once it can be reached",
    ) from unknown


def _outcome(host: str, job: SupervisedJob, answer: Answer) -> Launched:
    head, _, tail = answer.out.decode("utf-8", "replace").partition("\n\n")
    told = dict(line.split("=", 1) for line in head.splitlines() if "=" in line)
    if answer.code == 0:
        return Launched(
            ProcessToken.model_validate_json(told["token"]),
            int(told["attempt"]),
            int(told["port"]) if "port" in told else None,
        )
    for _, value in job.secrets:
        tail = tail.replace(value, "***") if value else tail
    raise _error(host, job, answer, told, tail.strip())


def _error(host: str, job: SupervisedJob, answer: Answer, told: dict[str, str], tail: str) -> ConfigError | JobFailed:
    """The exit codes of launch.sh, in words."""
    name, listed = job.name, f"dflashctl train list --host {host}"
    code = answer.code
    refused = {
        20: (f"run {name} exists already on {host} ({{state}})", "`train resume` goes on with it; or another --run-id"),
        21: (f"run {name} on {host} cannot be resumed ({{state}})", listed),
        22: (f"there is no run {name} in {job.folder} on {host}", listed),
        26: (f"GPU {{gpu}} of {host} is leased by {{holder}}", f"choose other GPUs; {listed} shows what runs"),
    }
    failed = {
        23: (f"the bundle on {host} lacks its supervisor ({job.supervisor})", "remove that bundle and start again"),
        24: (f"{{path}} could not be written on {host} ({{why}})", "make room, or another workdir in hosts.yaml"),
        25: (f"{host} has neither setsid nor python3", "install util-linux or python3 there"),
        27: (f"{host} has no free port among 200 that were tried", listed),
        32: (f"{host} has no /proc as Linux has it, which runs need", "choose another host"),
    }
    if code in refused:
        sentence, hint = refused[code]
        return ConfigError(f"{sentence.format(**told)}, nothing was started", hint=hint)
    if code in failed:
        sentence, hint = failed[code]
        told = {"why": "it is not known why", **told}
        return JobFailed(f"{sentence.format(**told)}, {name} was not started", host=host, hint=hint)
    if code == 28:
        return JobFailed(_with_tail(f"the supervisor of {name} did not come up on {host}", tail), host=host)
    if code == 29:
        return JobFailed(_with_tail(_ended(host, job, told["exit"]), tail), host=host)
    return JobFailed(
        f"the start of {name} on {host} ended with code {code}: {answer.err.strip()}", host=host, hint=listed
    )


def _ended(host: str, job: SupervisedJob, record: str) -> str:
    end = ExitRecord.model_validate_json(record)
    if end.stop:
        return f"{job.name} on {host} was asked to stop while it was being started"
    how = f"exit code {end.code}" if end.signal is None else f"signal {end.signal}"
    return f"{job.name} on {host} ended at once, with {how}"


def _with_tail(sentence: str, tail: str) -> str:
    return f"{sentence}; the end of its log:\n{tail}" if tail else f"{sentence}, and said nothing"


def _check(job: SupervisedJob) -> None:
    for path in (job.folder, job.supervisor, job.workdir):
        if not path.startswith("/") or "\n" in path:
            raise ConfigError(f"a supervised job needs absolute paths without line ends, found {path!r}")
    for name, value in (*job.env, *job.secrets):
        if not NAME.fullmatch(name) or "\0" in value:
            raise ConfigError(f"{name!r} cannot be an environment variable")
    for gpu in job.gpus:
        if not GPU.fullmatch(gpu):
            raise ConfigError(f"{gpu!r} is no UUID of a GPU")
    for name, text in job.files:
        if not FILE.fullmatch(name) or name in RESERVED or "\0" in text:
            raise ConfigError(f"{name!r} cannot be a file of a run")


def _conf_text(job: SupervisedJob, nonce: str, settle_s: float) -> str:
    """Assignments for sh; the launch adds port and leases."""
    fields = {
        "marker": nonce,
        "workdir": job.workdir,
        "sh": job.sh,
        "grace_s": str(ceil(job.grace_s)),
        "num_restarts": str(job.num_restarts),
        "restart_delay_s": str(ceil(job.restart_delay_s)),
        "settle_cs": str(ceil(settle_s * 100)),
        "log_limit_bytes": str(job.log_limit_bytes),
        "num_logs": str(max(1, job.num_logs)),
    }
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in fields.items())


def _job_text(job: SupervisedJob) -> str:
    """Run by the supervisor with the marker in its environment; ends in the job itself, under the same pid."""
    env = [(name, value) for name, value in job.env if not (name == "MASTER_PORT" and job.needs_port)]
    if job.gpus:
        env += [("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), ("CUDA_VISIBLE_DEVICES", ",".join(job.gpus))]
    exports = "".join(_export(name, value) for name, value in env)
    return f"{exports}. ./secrets.env\nexec {shlex.join(job.argv)}\n"


def _export(name: str, value: str) -> str:
    return f"export {name}={shlex.quote(value)}\n"
