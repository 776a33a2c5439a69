"""dflashctl hosts: which there are, and whether each is fit for its work."""

import typer

from dflashctl.cli.options import HostsOption, Json, inventory_of
from dflashctl.cli.output import Output

app = typer.Typer(no_args_is_help=True, help="The hosts of hosts.yaml, and a doctor for them.")


@app.command("list")
def list_(hosts: HostsOption = None, json: Json = False) -> None:
    """The hosts, how each is reached and what it is for. Nobody is asked."""
    from dflashctl.views.hosts import host_rows, inventory_table

    inventory = inventory_of(hosts)
    rows = host_rows(inventory)
    out = Output(is_json=json)
    out.result({"file": inventory.file, "hosts": rows}, inventory_table(rows))
    if inventory.file is None:
        out.say("there is no hosts.yaml here, so this machine is the only host; docs/hosts.md says how to write one")
