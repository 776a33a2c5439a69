"""dflashctl relay: checkpoints and other files from one host to another, through this machine."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dflashctl.cli.options import DryRun, HostsOption, Json, Touch
from dflashctl.cli.output import Output

app = typer.Typer(no_args_is_help=True, help="Move checkpoints and files between hosts that cannot see each other.")

From = Annotated[str | None, typer.Option("--from", metavar="HOST", help="Default: relay.source of hosts.yaml.")]
To = Annotated[str | None, typer.Option("--to", metavar="HOST", help="Default: relay.destination of hosts.yaml.")]
Replace = Annotated[bool, typer.Option("--replace", help="Take the place of what is there under that name.")]
Encode = Annotated[
    str,
    typer.Option("--encode", metavar="auto|always|no", help="Lossless: auto where the link is slower than the cores."),
]
Lanes = Annotated[int | None, typer.Option("--connections", min=1, max=8, help="Default: as the round trip has it.")]
WithState = Annotated[bool, typer.Option("--with-state", help="The optimizer's state too; serving needs none.")]
Keep = Annotated[int, typer.Option("--keep", min=0, help="Relayed checkpoints of a run that stay there; 0: all.")]


@app.command()
def ckpt(
    name: Annotated[
        str | None, typer.Argument(metavar="[RUN[@STEP|@best|@latest]]", help="Default: the newest there is.")
    ] = None,
    from_: From = None,
    to: To = None,
    with_state: WithState = False,
    replace: Replace = False,
    encode: Encode = "auto",
    connections: Lanes = None,
    workdir_from: Annotated[str | None, typer.Option("--from-workdir", metavar="DIR")] = None,
    workdir_to: Annotated[str | None, typer.Option("--to-workdir", metavar="DIR")] = None,
    hosts: HostsOption = None,
    touch: Touch = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Bring a finished checkpoint to another host, whole, verified on its disk, under the same name.

    Begun again after any end it goes on where it was.
    """
    from dflashctl.cli.run_relay import Relay

    relay = Relay(hosts, Output(is_json=json), tuple(touch or ()), encode, connections)
    relay.checkpoint(
        name, from_, to, workdir_from, workdir_to, with_state=with_state, replace=replace, is_dry_run=dry_run
    )


@app.command()
def path(
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="HOST:PATH, a path here, s3://NAME/KEY or hf://ORG/REPO.")
    ],
    dest: Annotated[str, typer.Argument(metavar="DST", help="The final name; with / at its end, the folder for it.")],
    replace: Replace = False,
    encode: Encode = "auto",
    connections: Lanes = None,
    hosts: HostsOption = None,
    touch: Touch = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Bring any file or folder to another place, whole, verified there."""
    from dflashctl.cli.run_relay import Relay

    relay = Relay(hosts, Output(is_json=json), tuple(touch or ()), encode, connections)
    relay.path(source, dest, replace=replace, is_dry_run=dry_run)


@app.command()
def watch(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Default: the one with the newest checkpoint.")
    ] = None,
    from_: From = None,
    to: To = None,
    every: Annotated[float, typer.Option("--every", min=1, metavar="SECONDS", help="Between looks.")] = 30.0,
    keep: Keep = 0,
    then: Annotated[
        str | None,
        typer.Option(
            "--then", metavar="COMMAND", help="Run here by sh after each, with $DFLASHCTL_CHECKPOINT and others."
        ),
    ] = None,
    with_state: WithState = False,
    encode: Encode = "auto",
    connections: Lanes = None,
    hosts: HostsOption = None,
    touch: Touch = None,
    json: Json = False,
) -> None:
    """Follow a run: each time its newest complete checkpoint is brought over, and those that it has overtaken are not.

    Ends when the run has ended and its last checkpoint is there; Ctrl-C ends it earlier.
    """
    from dflashctl.cli.watch_relay import watch as follow

    out = Output(is_json=json)
    follow(
        hosts, out, tuple(touch or ()), encode, connections, run, from_, to, every, keep, then, with_state=with_state
    )


@app.command("list")
def list_(to: To = None, hosts: HostsOption = None, json: Json = False) -> None:
    """Relays begun from this machine, and what the destination has: unfinished, and received."""
    from dflashctl.cli.run_relay import Relay

    Relay(hosts, Output(is_json=json), (), "auto", None).list(to)


@app.command()
def resume(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="From `relay list`; default: the newest unfinished.")
    ] = None,
    json: Json = False,
) -> None:
    """Go on with a relay that did not come to its end."""
    from dflashctl.cli.run_relay import unfinished

    arguments = unfinished(name)
    if arguments is None:
        Output(is_json=json).result({"name": name, "outcome": "done"}, f"relay {name} came to its end: nothing is left")
        return
    command: Any = typer.main.get_command(app)
    extra = ["--json"] if json else []
    with command.make_context("relay", [*arguments, *extra]) as context:
        command.invoke(context)


__all__ = ["Path", "app"]
