"""dflashctl deploy: servers that are proven before they are called ready, and ended without a trace."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from dflashctl.artifacts import ServerRef, Workdir
from dflashctl.cli.options import (
    Config,
    DryRun,
    Host,
    Json,
    Set,
    WorkdirOption,
    overrides_of,
    transport_of,
)
from dflashctl.cli.output import Output
from dflashctl.defaults import DEFAULT_WORKDIR
from dflashctl.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="Serve a target with its drafter.")

Server = Annotated[str, typer.Option("--server", metavar="NAME", help="The server's name.")]
LOG_PAUSE_S = 0.2


@app.command()
def up(
    server: Annotated[
        str | None, typer.Option("--server", metavar="NAME", help="Its name; default: deploy.name of run.yaml.")
    ] = None,
    config: Config = None,
    set_: Set = None,
    engine: Annotated[str | None, typer.Option("--engine", metavar="NAME", help="What serves it.")] = None,
    target: Annotated[Path | None, typer.Option("--target", metavar="DIR", help="The target's folder.")] = None,
    drafter: Annotated[
        str | None,
        typer.Option("--drafter", metavar="RUN[@STEP|@latest]", help="Of a run in --workdir, or a folder."),
    ] = None,
    port: Annotated[int | None, typer.Option("--port", min=0, max=65535, help="0: any free one.")] = None,
    timeout_s: Annotated[
        float | None,
        typer.Option("--timeout-s", min=0, help="For the start; default: as long as the engine may need."),
    ] = None,
    workdir: WorkdirOption = DEFAULT_WORKDIR,
    host: Host = "local",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Start a server and prove it: health, a real completion, and drafts accepted on it."""
    from dflashctl.bundle import bundle_root, bundle_sha
    from dflashctl.config.run import load_section
    from dflashctl.config.servers import ServerSpec
    from dflashctl.stages.deploy.apply import bring_up
    from dflashctl.stages.deploy.checks import check_start
    from dflashctl.stages.deploy.plan import plan_deploy
    from dflashctl.views.deploy import deploy_plan, ready

    overrides = overrides_of(
        set_,
        server=("deploy.name", server),
        engine=("deploy.engine", engine),
        target=("deploy.target", target),
        drafter=("deploy.drafter", drafter),
        port=("deploy.port", port),
    )
    spec = load_section("deploy", ServerSpec, config, overrides)
    transport = transport_of(host if host != "local" else spec.host)
    root = Workdir(workdir.expanduser().absolute())
    plan = plan_deploy(spec, root, python=transport.python(), bundle_root=bundle_root())
    out = Output(is_json=json)
    if dry_run:
        running = check_start(plan, root, transport, bundle_sha=bundle_sha())
        shown = deploy_plan(plan) if running is None else ready(running, was_running=True)
        out.result({"plan": plan, "running": running}, shown)
        return
    with _waiting(out) as say:
        came = bring_up(plan, root, transport, bundle_sha=bundle_sha(), say=say, timeout_s=timeout_s)
    out.result(came, ready(came.record, was_running=came.was_running))


@app.command()
def down(
    server: Server,
    workdir: WorkdirOption = DEFAULT_WORKDIR,
    host: Host = "local",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """End a server, politely first, and prove that nothing of it is left."""
    from dflashctl.stages.deploy.apply import bring_down
    from dflashctl.views.deploy import down_plan

    transport = transport_of(host)
    ref = _known(workdir, server)
    out = Output(is_json=json)
    if dry_run:
        record = ref.record()
        assert record is not None
        presence, members = transport.presence(record.token), transport.family(record.token)
        document = {"server": server, "token": record.token, "presence": presence, "family": members}
        out.result(document, down_plan(record, presence, members))
        return
    with _waiting(out) as say:
        ended = bring_down(ref, transport, say=say)
    out.result(ended, f"server {server} is down: {ended.how}")


@app.command("list")
def list_(workdir: WorkdirOption = DEFAULT_WORKDIR, host: Host = "local", json: Json = False) -> None:
    """The servers of a work folder, as they are now."""
    from dflashctl.facts.servers import state_of
    from dflashctl.views.deploy import servers

    transport = transport_of(host)
    states = [state_of(ref, transport) for ref in Workdir(workdir.expanduser().absolute()).servers()]
    out = Output(is_json=json)
    if not states:
        out.result([], f"no server in {workdir}")
        return
    out.result(states, servers(states, time.time()))


@app.command()
def logs(
    server: Server,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="So many from the end.")] = 40,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the server ends, or Ctrl-C.")] = False,
    workdir: WorkdirOption = DEFAULT_WORKDIR,
    host: Host = "local",
    json: Json = False,
) -> None:
    """What the server printed."""
    from dflashctl.transport.tail import follow_text

    transport = transport_of(host)
    ref = _known(workdir, server)
    record = ref.record()
    assert record is not None
    token = record.token
    out = Output(is_json=json)
    if json and follow:
        raise ConfigError("--follow has no end, so that it cannot be one JSON document", hint="leave --json out")
    content = ref.log_path.read_bytes() if ref.log_path.is_file() else b""
    tail = content.decode("utf-8", errors="replace").splitlines()[-lines:]
    out.result(tail, "\n".join(tail))
    if follow:
        for more in follow_text(
            ref.log_path,
            offset_bytes=len(content),
            is_over=lambda: transport.presence(token) != "alive",
            pause=lambda: time.sleep(LOG_PAUSE_S),
        ):
            out.results.print(more, end="", markup=False, soft_wrap=True)


@contextmanager
def _waiting(out: Output) -> Iterator[Callable[[str], None]]:
    """Lines as they come; on a terminal something turns below them, with the seconds."""
    if not out.is_live:
        yield out.say
        return
    from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn

    with Progress(SpinnerColumn(), TimeElapsedColumn(), console=out.progress, transient=True) as progress:
        progress.add_task("", total=None)
        yield out.say


def _known(workdir: Path, server: str) -> ServerRef:
    return Workdir(workdir.expanduser().absolute()).known_server(server)
