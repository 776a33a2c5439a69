"""Starting a server and proving that it serves; ending one and proving that it is gone."""

import time
from dataclasses import dataclass

from dflashctl.artifacts import ServerRef, Workdir
from dflashctl.engines.registry import engine_of
from dflashctl.errors import ArtifactError, ConfigError, DflashctlError, EngineUnhealthy, Interrupted
from dflashctl.facts.servers import state_of
from dflashctl.records import ServerRecord
from dflashctl.stages.deploy.checks import check_start, port_of
from dflashctl.stages.deploy.ending import Say, end
from dflashctl.stages.deploy.plan import DeployPlan
from dflashctl.stages.deploy.prove import NoAnswer, prove
from dflashctl.transport.base import Job, JobHandle, Transport
from dflashctl.transport.process import interrupts_held
from dflashctl_remote.spec.events import Failed, Notice, Serving, Stopped
from dflashctl_remote.spec.manifest import write_atomically

LOG_LINES = 30
WORD_EVERY_S = 10.0
LAST_BREATH_S = 2.0


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


def bring_up(
    plan: DeployPlan,
    workdir: Workdir,
    transport: Transport,
    *,
    bundle_sha: str,
    say: Say,
    timeout_s: float | None = None,
) -> Up:
    """Start the server and wait until it is proven ready; a server that is not is ended again.

    `timeout_s` is for the start, without the proof; None: as long as the engine may need.
    Raises ConfigError if the name or the port is taken, EngineUnhealthy if it does not come up or accepts no draft.
    """
    server = plan.server
    server.folder.mkdir(parents=True, exist_ok=True)
    with transport.lock(server.folder / "lock") as holder:
        if holder is not None:
            raise ConfigError(
                f"another command (process {holder}) is starting server {server.name}, nothing was started",
                hint=f"wait for it, or end what it started: {server.command('down')}",
            )
        running = check_start(plan, workdir, transport, bundle_sha=bundle_sha)
        if running is not None:
            return Up(running, was_running=True)
        return Up(_start(plan, transport, bundle_sha, say, timeout_s), was_running=False)


def bring_down(server: ServerRef, transport: Transport, *, say: Say) -> Down:
    """End the server by its token, politely first, and prove that nothing of it is left, its port included.

    A token that matches no process means that it is gone: then nothing is signalled at all.
    Raises ConfigError if it was never started or is out of reach, EngineUnhealthy if something of it stays.
    """
    record = server.record()
    if record is None:
        raise ConfigError(f"server {server.name} was never started here", hint="dflashctl deploy list")
    engine = engine_of(record.engine)
    presence = transport.presence(record.token)
    if presence != "alive" and not transport.family(record.token):
        if presence == "another namespace":
            _require_silence(record, engine.readiness.health_path, transport)
        if state_of(server, transport).state == "ended without a word":
            record = record.model_copy(update={"failure": "it ended without a word before it was taken down"})
        _note_stopped(server, record)
        return Down(server.name, f"{_gone(record, presence)}; nothing was signalled")
    try:
        how = end(record.token, engine, transport, say)
    except KeyboardInterrupt as interrupt:
        raise Interrupted(
            f"interrupted; server {server.name} was asked to end and may still be ending",
            hint=server.command("down"),
        ) from interrupt
    _note_stopped(server, record)
    port = port_of(record)
    if port and not transport.is_port_free(port):
        raise EngineUnhealthy(
            f"server {server.name} is down ({how}), and somebody still listens on its port {port}",
            hint="a process that it started may have left its session; see who listens there",
        )
    return Down(server.name, f"{how}, port {port} is free" if port else how)


def _gone(record: ServerRecord, presence: str) -> str:
    if presence == "another boot":
        return f"the machine was started anew since, and process {record.token.pid} with it"
    if presence == "another namespace":
        return "it ran in another PID namespace, and nothing answers at its address"
    return f"process {record.token.pid} was gone already"


def _require_silence(record: ServerRecord, health_path: str, transport: Transport) -> None:
    reply = transport.get(record.base_url + health_path, timeout_s=5.0)
    if reply.status:
        raise ConfigError(
            f"server {record.name} was started in another PID namespace, and {record.base_url} answers: "
            "nothing was signalled",
            hint="run the same command in the container that it was started in",
        )


def _start(plan: DeployPlan, transport: Transport, bundle_sha: str, say: Say, timeout_s: float | None) -> ServerRecord:
    server, engine = plan.server, engine_of(plan.spec.engine)
    for path, text in plan.launch.files:
        write_atomically(path, text)
    job = Job(server.name, plan.launch.argv, plan.launch.env, server.events_path, server.log_path, is_detached=True)
    handle: JobHandle | None = None
    record: ServerRecord | None = None
    try:
        with interrupts_held():
            handle = transport.start(job)
            record = _record_of(plan, handle, transport.name, bundle_sha)
            _write(server, record)
        limit_s = engine.readiness.timeout_s if timeout_s is None else timeout_s
        say(f"{server.name}: process {handle.pid} starts, waiting up to {limit_s:g} s for it")
        serving = _await_serving(server.name, handle, limit_s, say)
        record = record.model_copy(update={"base_url": f"http://{serving.address}:{serving.port}"})
        _write(server, record)
        say(f"{server.name}: {record.base_url} answers; asking for a completion")
        try:
            record = record.model_copy(update={"proof": prove(record, engine, transport)})
        except NoAnswer as error:
            # A process that ends closes its connections a moment before it is gone.
            if transport.wait_gone(record.token, LAST_BREATH_S):
                raise _last_words(server.name, handle) from error
            raise
        _write(server, record)
    except BaseException as error:
        # What is not proven must not stay up: nobody would look after it.
        if record is None and handle is not None:
            handle.kill()
        if record is not None:
            end(record.token, engine, transport, say, kills_at_ctrl_c=True)
            why = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error).partition("\n")[0]
            _note_stopped(server, record.model_copy(update={"failure": why}))
        if isinstance(error, KeyboardInterrupt):
            raise Interrupted(f"interrupted; server {server.name} was ended again") from error
        raise
    return record


def _record_of(plan: DeployPlan, handle: JobHandle, host: str, bundle_sha: str) -> ServerRecord:
    """Raises ConfigError on a host whose processes cannot be told apart."""
    if handle.token is None:
        raise ConfigError(f"host {host} has no /proc, and a server that cannot be known again could not be ended")
    return ServerRecord(
        name=plan.server.name,
        host=host,
        engine=plan.spec.engine,
        base_url=f"http://127.0.0.1:{plan.spec.port}",
        model=plan.model,
        target=plan.spec.target,
        drafter=None if plan.drafter is None else str(plan.drafter.folder),
        drafter_label=None if plan.drafter is None else plan.drafter.label,
        drafter_sha256=None if plan.drafter is None else plan.drafter.sha256,
        num_draft_tokens=plan.num_draft_tokens,
        argv=plan.launch.argv,
        token=handle.token,
        bundle_sha=bundle_sha,
        started_at_s=time.time(),
    )


def _await_serving(name: str, handle: JobHandle, limit_s: float, say: Say) -> Serving:
    """The event that says so; raises the job's own error, or EngineUnhealthy with the end of its log."""
    began_s = time.monotonic()
    next_word_s = began_s + WORD_EVERY_S

    def is_over() -> bool:
        nonlocal next_word_s
        now_s = time.monotonic()
        if now_s > next_word_s:
            next_word_s = now_s + WORD_EVERY_S
            say(f"{name}: not ready after {now_s - began_s:.0f} s; its log ends: {handle.log_tail(1) or '(empty)'}")
        return now_s > began_s + limit_s

    for event in handle.events(until=is_over):
        match event:
            case Serving():
                return event
            case Failed():
                handle.wait()
                raise _error_of(event.exit_code, f"server {name} did not start: {event.message}", hint=event.hint)
            case Stopped():
                raise EngineUnhealthy(f"server {name} was stopped while it started: {event.reason}")
            case Notice():
                say(f"{name}: {event.message}")
    if is_over():
        raise EngineUnhealthy(
            f"server {name} did not come up within {limit_s:g} s; the end of its log:\n{handle.log_tail(LOG_LINES)}"
        )
    raise _last_words(name, handle)


def _error_of(exit_code: int, message: str, *, hint: str = "") -> DflashctlError:
    """A wrong setting and a broken checkpoint stay what they are; all else is a server that does not come up."""
    kinds: dict[int, type[DflashctlError]] = {2: ConfigError, 5: ArtifactError}
    return kinds.get(exit_code, EngineUnhealthy)(message, hint=hint)


def _last_words(name: str, handle: JobHandle) -> DflashctlError:
    code = handle.wait()
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    tail = handle.log_tail(LOG_LINES).strip()
    said = f"the end of its log:\n{tail}" if tail else "its log is empty"
    return _error_of(code, f"server {name} ended before it was ready ({how}); {said}")


def _note_stopped(server: ServerRef, record: ServerRecord) -> None:
    if record.stopped_at_s is None:
        _write(server, record.model_copy(update={"stopped_at_s": time.time()}))


def _write(server: ServerRef, record: ServerRecord) -> None:
    write_atomically(server.record_path, record.model_dump_json(indent=2) + "\n")
