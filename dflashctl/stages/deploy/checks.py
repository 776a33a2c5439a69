"""What a host has against the start of a server, asked before anything is written or started."""

from dflashctl.artifacts import Workdir
from dflashctl.engines.registry import engine_of
from dflashctl.errors import ArtifactError, ConfigError, EngineUnhealthy
from dflashctl.records import ServerRecord
from dflashctl.stages.deploy.plan import SPEC_NAME, DeployPlan
from dflashctl.transport.base import Transport


def check_start(plan: DeployPlan, workdir: Workdir, transport: Transport, *, bundle_sha: str) -> ServerRecord | None:
    """The record of this very server if it runs already; None: nothing is against the start.

    Raises ConfigError for a name or a port that is taken and for missing modules, EngineUnhealthy if this very
    server runs and is not healthy.
    """
    running = _running(plan, transport, bundle_sha)
    if running is not None:
        return running
    _require_port(plan, workdir, transport)
    missing = transport.missing_modules(plan.launch.needs_modules)
    if missing:
        raise ConfigError(
            f"the {plan.spec.engine} engine on host {transport.name} needs {', '.join(missing)}, "
            f"not found for {transport.python()}",
            hint="pip install 'dflashctl[serve]' in that environment",
        )
    return None


def port_of(record: ServerRecord) -> int:
    """0: not known yet."""
    return int(record.base_url.rpartition(":")[2])


def _running(plan: DeployPlan, transport: Transport, bundle_sha: str) -> ServerRecord | None:
    """The record of this very server, if it runs; raises if what runs by its name is anything else."""
    record = plan.server.record()
    if record is None:
        return None
    name, down = record.name, plan.server.command("down")
    if transport.presence(record.token) != "alive":
        left = ", ".join(str(member.pid) for member in transport.family(record.token))
        if left:
            raise ConfigError(f"server {name} has ended, and process {left} of it is still there", hint=down)
        return None
    who = f"process {record.token.pid}" + (f", {record.base_url}" if port_of(record) else "")
    if record.proof is None:
        raise ConfigError(
            f"server {name} runs, and the command that started it was cut off before it was proven ({who})", hint=down
        )
    other = _difference(plan, record, bundle_sha)
    if other is not None:
        raise ConfigError(f"server {name} runs already with {other} ({who})", hint=down)
    health = transport.get(record.base_url + engine_of(record.engine).readiness.health_path, timeout_s=5.0)
    if not health.is_ok:
        raise EngineUnhealthy(
            f"server {name} runs already with the same settings and is not healthy ({who}): "
            f"{health.status or 'no answer'} {health.text[:200]}",
            hint=down,
        )
    return record


def _difference(plan: DeployPlan, record: ServerRecord, bundle_sha: str) -> str | None:
    """What sets the server that runs apart from the one that is wanted."""
    # How it was asked for does not count: RUN@latest and RUN@300 may be the same checkpoint.
    files = (file for file in plan.launch.files if file[0].name != SPEC_NAME)
    is_same = all(path.is_file() and path.read_text(encoding="utf-8") == text for path, text in files)
    if record.engine != plan.spec.engine or record.argv != plan.launch.argv or not is_same:
        return "other settings"
    if plan.drafter is not None and record.drafter_sha256 != plan.drafter.sha256:
        return "other weights of its drafter"
    if record.bundle_sha != bundle_sha:
        return f"other code (bundle {record.bundle_sha[:12]}, now {bundle_sha[:12]})"
    return None


def _require_port(plan: DeployPlan, workdir: Workdir, transport: Transport) -> None:
    port = plan.spec.port
    if port == 0 or transport.is_port_free(port):
        return
    for other in workdir.servers():
        try:
            record = other.record()
        except ArtifactError:
            # A record that cannot be read names nobody; the port is taken all the same.
            continue
        if record and port_of(record) == port and transport.presence(record.token) == "alive":
            raise ConfigError(
                f"port {port} on {transport.name} is taken by our own server {other.name}",
                hint=f"{other.command('down')}, or another --port",
            )
    raise ConfigError(
        f"port {port} on {transport.name} is taken by a process that is not one of ours",
        hint="another --port, or --port 0 for any free one",
    )
