"""Starting a server and proving that it serves; ending one and proving that it is gone."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from dflashctl.artifacts import ServerRef, Workdir
from dflashctl.engines.base import Engine
from dflashctl.engines.registry import engine_of
from dflashctl.errors import ConfigError, DflashctlError, EngineUnhealthy, Interrupted
from dflashctl.records import ServerRecord
from dflashctl.stages.deploy.plan import DeployPlan
from dflashctl.stages.deploy.prove import prove
from dflashctl.transport.base import Job, JobHandle, Transport
from dflashctl_remote.spec.events import Failed, Notice, Serving, Stopped
from dflashctl_remote.spec.manifest import write_atomically
from dflashctl_remote.spec.process import ProcessToken

LOG_LINES = 30
Say = Callable[[str], None]


@dataclass(frozen=True)
class Up:
    record: ServerRecord
    was_running: bool
    """The very same server was up already, and nothing was started."""


@dataclass(frozen=True)
class Down:
    server: str
    how: str
    """What was seen: ended by itself, ended when asked, had to be killed, was gone already."""


def bring_up(plan: DeployPlan, workdir: Workdir, transport: Transport, *, bundle_sha: str, say: Say) -> Up:
    """Start the server and wait until it is proven ready; a server that is not is ended again.

    Raises ConfigError if the name or the port is taken, EngineUnhealthy if it does not come up or accepts no draft.
    """
    server = plan.server
    server.folder.mkdir(parents=True, exist_ok=True)
    with transport.lock(server.folder / "lock") as holder:
        if holder is not None:
            raise ConfigError(
                f"another command is working on server {server.name} (process {holder}), nothing was started",
                hint=f"wait for it, then: dflashctl deploy list --workdir {workdir.path}",
            )
        running = _running(plan, transport)
        if running is not None:
            return Up(running, was_running=True)
        _require_port(plan, workdir, transport)
        missing = transport.missing_modules(plan.launch.needs_modules)
        if missing:
            raise ConfigError(
                f"the {plan.spec.engine} engine on host {transport.name} needs {', '.join(missing)}, "
                f"not found for {transport.python()}",
                hint="pip install 'dflashctl[serve]' in that environment",
            )
        return Up(_start(plan, transport, bundle_sha, say), was_running=False)


def bring_down(server: ServerRef, transport: Transport, *, say: Say) -> Down:
    """End the server by its token, politely first, and prove that nothing of it is left.

    A token that matches no process means that it is gone: then nothing is signalled at all.
    Raises ConfigError if it was never started, EngineUnhealthy if something of it outlives SIGKILL.
    """
    record = server.record()
    if record is None:
        raise ConfigError(f"server {server.name} was never started here", hint="dflashctl deploy list")
    presence = transport.presence(record.token)
    if presence == "another namespace":
        raise ConfigError(f"server {server.name} runs in another PID namespace than this one: nothing was signalled")
    if presence != "alive" and not transport.family(record.token):
        _note_stopped(server, record)
        before = f"the machine was started anew since, and process {record.token.pid} with it"
        gone = before if presence == "another boot" else f"process {record.token.pid} was gone already"
        return Down(server.name, f"{gone}; nothing was signalled")
    how = _end(record.token, engine_of(record.engine), transport, say)
    _note_stopped(server, record)
    return Down(server.name, how)


def _running(plan: DeployPlan, transport: Transport) -> ServerRecord | None:
    """The record of this very server, if it runs and was proven; raises ConfigError if another runs by its name."""
    record = plan.server.record()
    if record is None or transport.presence(record.token) != "alive":
        return None
    files = all(path.is_file() and path.read_text(encoding="utf-8") == text for path, text in plan.launch.files)
    if record.proof is not None and record.argv == plan.launch.argv and files:
        return record
    raise ConfigError(
        f"server {plan.server.name} runs already with other settings (process {record.token.pid}, {record.base_url})",
        hint=f"dflashctl deploy down --server {plan.server.name}",
    )


def _require_port(plan: DeployPlan, workdir: Workdir, transport: Transport) -> None:
    port = plan.spec.port
    if port == 0 or transport.is_port_free(port):
        return
    for other in workdir.servers():
        record = other.record()
        if record and record.base_url.endswith(f":{port}") and transport.presence(record.token) == "alive":
            raise ConfigError(
                f"port {port} on {transport.name} is taken by our own server {other.name}",
                hint=f"dflashctl deploy down --server {other.name}, or another --port",
            )
    raise ConfigError(
        f"port {port} on {transport.name} is taken by a process that is not one of ours",
        hint="another --port, or --port 0 for any free one",
    )


def _start(plan: DeployPlan, transport: Transport, bundle_sha: str, say: Say) -> ServerRecord:
    server, spec = plan.server, plan.spec
    for path, text in plan.launch.files:
        write_atomically(path, text)
    job = Job(spec.name, plan.launch.argv, plan.launch.env, server.events_path, server.log_path, is_detached=True)
    handle = transport.start(job)
    token = transport.token_of(handle.pid, str(server.folder))
    if token is None:
        raise EngineUnhealthy(_last_words(server.name, handle))
    record = ServerRecord(
        name=server.name,
        host=transport.name,
        engine=spec.engine,
        base_url=f"http://127.0.0.1:{spec.port}",
        model=plan.model,
        target=spec.target,
        drafter=None if plan.drafter is None else str(plan.drafter.folder),
        drafter_label=None if plan.drafter is None else plan.drafter.label,
        drafter_sha256=None if plan.drafter is None else plan.drafter.sha256,
        num_draft_tokens=plan.num_draft_tokens,
        argv=plan.launch.argv,
        token=token,
        bundle_sha=bundle_sha,
        started_at_s=time.time(),
    )
    _write(server, record)
    engine = engine_of(spec.engine)
    try:
        serving = _await_serving(server.name, handle, engine, say)
        record = record.model_copy(update={"base_url": f"http://{serving.address}:{serving.port}"})
        _write(server, record)
        say(f"{server.name}: {record.base_url} answers; asking for a completion")
        record = record.model_copy(update={"proof": prove(record, engine, transport)})
        _write(server, record)
    except BaseException as error:
        # What is not proven must not stay up: nobody would look after it.
        _end(token, engine, transport, say)
        _note_stopped(server, record)
        if isinstance(error, KeyboardInterrupt):
            raise Interrupted(f"interrupted; server {server.name} was ended again") from error
        raise
    return record


def _await_serving(name: str, handle: JobHandle, engine: Engine, say: Say) -> Serving:
    """The event that says so; raises the job's own error, or EngineUnhealthy with the end of its log."""
    deadline_s = time.monotonic() + engine.readiness.timeout_s
    for event in handle.events(until=lambda: time.monotonic() > deadline_s):
        match event:
            case Serving():
                return event
            case Failed():
                handle.wait()
                raise _failed(name, event)
            case Stopped():
                raise EngineUnhealthy(f"server {name} was stopped while it started: {event.reason}")
            case Notice():
                say(f"{name}: {event.message}")
    if time.monotonic() > deadline_s:
        raise EngineUnhealthy(
            f"server {name} did not come up within {engine.readiness.timeout_s:g} s; the end of its log:\n"
            f"{handle.log_tail(LOG_LINES)}"
        )
    raise EngineUnhealthy(_last_words(name, handle))


def _failed(name: str, event: Failed) -> DflashctlError:
    """A wrong setting stays a wrong setting; everything else is a server that does not come up."""
    error = EngineUnhealthy(f"server {name} did not start: {event.message}", hint=event.hint)
    if event.exit_code in (2, 5):
        error.exit_code = event.exit_code
    return error


def _last_words(name: str, handle: JobHandle) -> str:
    code = handle.wait()
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    tail = handle.log_tail(LOG_LINES).strip()
    return f"server {name} ended while it started ({how}); " + (
        f"the end of its log:\n{tail}" if tail else "its log is empty"
    )


def _end(token: ProcessToken, engine: Engine, transport: Transport, say: Say) -> str:
    """SIGTERM to the server, then SIGKILL to all that carry its marker; what it took to be rid of it."""
    if transport.send(token, signal.SIGTERM):
        say(f"asked process {token.pid} to end, waiting up to {engine.shutdown.grace_s:g} s")
        transport.wait_gone(token, engine.shutdown.grace_s)
    left = transport.family(token)
    if not left:
        return f"process {token.pid} ended when asked; nothing of it is left"
    for member in left:
        transport.send(member, signal.SIGKILL)
    for member in left:
        transport.wait_gone(member, 5.0)
    survivors = transport.family(token)
    if survivors:
        pids = ", ".join(str(member.pid) for member in survivors)
        raise EngineUnhealthy(f"process {pids} outlives SIGKILL (it may hang in a driver)")
    pids = ", ".join(str(member.pid) for member in left)
    return f"process {pids} had to be killed; nothing of it is left"


def _note_stopped(server: ServerRef, record: ServerRecord) -> None:
    if record.stopped_at_s is None:
        _write(server, record.model_copy(update={"stopped_at_s": time.time()}))


def _write(server: ServerRef, record: ServerRecord) -> None:
    write_atomically(server.record_path, record.model_dump_json(indent=2) + "\n")
