"""A job under a host's supervisor, as a plan and as a fact: what is to run there, and who it is once it does."""

from dataclasses import dataclass

from dflashctl_remote.spec.process import ProcessToken

GRACE_S = 120.0
"""A checkpoint can take a minute to save."""


@dataclass(frozen=True)
class SupervisedJob:
    """All paths are the host's, absolute."""

    name: str
    """The run's id, for people."""
    folder: str
    """Made by the launch, which is its lock: run.json, token.json, exit.json, log and events lie there."""
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    """Added to the host's own environment."""
    files: tuple[tuple[str, str], ...]
    """Name and text of each file that is written into the folder before the start: run.json."""
    supervisor: str
    """Folder of the supervisor's scripts: <workdir>/bundles/<sha12>/dflashctl_remote/supervisor."""
    workdir: str
    """Leases of GPUs and ports lie there."""
    secrets: tuple[tuple[str, str], ...] = ()
    """Environment variables that go through a file of mode 0600 and are never shown."""
    gpus: tuple[str, ...] = ()
    """UUIDs to lease; the job sees these and no others."""
    needs_port: bool = False
    """Reserve a free port for the job's rendezvous: MASTER_PORT."""
    grace_s: float = GRACE_S
    num_restarts: int = 0
    """So often it is started again after a bad end; never after a stop, nor for exit codes 2, 5, 130."""
    restart_delay_s: float = 10.0
    log_limit_bytes: int = 64 * 2**20
    """Size at which the log is rotated."""
    num_logs: int = 8
    """Rotated ones that stay."""
    sh: str = "/bin/sh"
    """What the supervisor and job.sh are run by."""


@dataclass(frozen=True)
class Launched:
    token: ProcessToken
    """The supervisor's."""
    attempt: int
    """Counts from 1: the start, then each resume."""
    port: int | None = None


@dataclass(frozen=True)
class StopProof:
    """What a stop found and left, as the host itself told it at the end."""

    outcome: str
    """In words: "ended when asked", "had to be killed", "was gone already"."""
    exit_code: int | None
    signal: int | None
    killed: tuple[int, ...]
    """Pids that SIGKILL was sent to."""
    survivors: tuple[int, ...] = ()
    """Processes that outlive SIGKILL: a hanging driver."""
    ports_held: tuple[int, ...] = ()
    gpus_held: tuple[str, ...] = ()
    """UUIDs of leased GPUs that still have memory in use, by whomever."""
