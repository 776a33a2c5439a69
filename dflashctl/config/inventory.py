"""The hosts that there are: where hosts.yaml is found, what it comes to, and a host by its name."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from dflashctl.config.host_checks import check_hosts
from dflashctl.config.hosts import REACHED_BY, HostsFile, HostSpec
from dflashctl.config.load import Override, Tree, load_tree
from dflashctl.config.schema import Resolved, nearest, refuse_unknown_keys, resolved, validated
from dflashctl.defaults import LOCAL
from dflashctl.errors import ConfigError

FILE_NAME = "hosts.yaml"
FILE_VARIABLE = "DFLASHCTL_HOSTS"
_MASKED = frozenset({"secrets", "variables", "access_key_variable", "secret_key_variable", "install_args"})


@dataclass(frozen=True)
class Inventory:
    content: HostsFile
    """With `local`, whether the file names it or not; servers carry their names."""
    file: Path | None = None
    """None: there is none, and `local` is the only host."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.content.hosts)

    def lookup(self, name: str) -> HostSpec:
        """The host of that name. Raises ConfigError with the nearest name."""
        if name in self.content.hosts:
            return self.content.hosts[name]
        if self.file is None:
            hint = f"write {FILE_NAME} here, or give --hosts FILE or ${FILE_VARIABLE}; this machine is called {LOCAL}"
            raise ConfigError(f"host {name} is not known: there is no {FILE_NAME}", hint=hint)
        near = nearest(name, self.names)
        hint = f"did you mean {near}?" if near else f"known: {', '.join(self.names)}"
        raise ConfigError(f"host {name} is not in {self.file}", hint=hint)

    def with_local(self, workdir: str, python: str) -> "Inventory":
        """With what the file does not say of this machine: its work folder, and the interpreter unless that is written.

        `workdir`: absolute.
        """
        told = self.lookup(LOCAL)
        changes = {"workdir": workdir, **({} if "python" in told.model_fields_set else {"python": python})}
        hosts = {**self.content.hosts, LOCAL: told.model_copy(update=changes)}
        return replace(self, content=self.content.model_copy(update={"hosts": hosts}))

    def jumps(self, name: str) -> tuple[str, ...]:
        """What lies between this machine and the host by `via`, first hop first. Raises as `lookup`.

        The first may be an alias of ssh_config. Jumps that ssh_config adds are not among them.
        """
        hops: list[str] = []
        hop = self.lookup(name).via
        while hop is not None:
            hops.insert(0, hop)
            hop = self.content.hosts[hop].via if hop in self.content.hosts else None
        return tuple(hops)

    def cannot_reach(self, name: str) -> tuple[str, ...]:
        """The hosts that this one cannot reach, nor they it."""
        pairs = [pair for pair in self.content.relay.unreachable if name in pair]
        return tuple(dict.fromkeys(other for pair in pairs for other in pair if other != name))


def find_hosts_file(given: Path | None) -> Path | None:
    """`given`, else what $DFLASHCTL_HOSTS names, both whether there or not; else ./hosts.yaml if it is there."""
    if given is not None:
        return given.expanduser()
    if named := os.environ.get(FILE_VARIABLE):
        return Path(named).expanduser()
    return Path(FILE_NAME) if Path(FILE_NAME).is_file() else None


def load_inventory(file: Path | None, overrides: tuple[Override, ...] = ()) -> Inventory:
    """The file, checked; without one `local` alone.

    Raises ConfigError with file, line, path and the nearest valid key.
    """
    content, _ = _load(file, overrides)
    return Inventory(content, file)


def resolved_hosts(file: Path, overrides: tuple[Override, ...] = ()) -> tuple[Resolved, ...]:
    """Every value of a hosts.yaml with its origin; of `local` what the file can say. Raises as `load_inventory`."""
    content, tree = _load(file, overrides)
    # Of these, other defaults hold for this machine, or none.
    elsewhere = {f"hosts.{LOCAL}.{field}" for field in (*REACHED_BY, "workdir", "python")}
    values = resolved(content, (), tree)
    return tuple(value for value in values if value.path not in elsewhere or value.origin != "default")


def is_hosts_file(file: Path) -> bool:
    """Whether its sections are those of a hosts.yaml rather than of a run.yaml. Raises ConfigError for no YAML."""
    from dflashctl.config.run import RunFile

    sections = tuple(load_tree(file, ()).values)

    def known(model: type[HostsFile] | type[RunFile]) -> tuple[int, int]:
        fields = tuple(model.model_fields)
        return sum(s in fields for s in sections), sum(nearest(s, fields) is not None for s in sections)

    return known(HostsFile) > known(RunFile)


def _load(file: Path | None, overrides: tuple[Override, ...]) -> tuple[HostsFile, Tree]:
    tree = load_tree(file, overrides, name=FILE_NAME, takes_set=False)
    refuse_unknown_keys(tree, HostsFile)
    # A key with nothing after it is an empty one.
    written = {
        section: {name: {} if entry is None else entry for name, entry in below.items()}
        if isinstance(below, dict) and section in ("hosts", "s3", "servers")
        else below
        for section, below in tree.values.items()
        if below is not None
    }
    content = validated(HostsFile, written, (), tree, file, masked=_MASKED)
    check_hosts(content, tree)
    hosts = {LOCAL: HostSpec(), **content.hosts}
    servers = {name: server.model_copy(update={"name": name}) for name, server in content.servers.items()}
    return content.model_copy(update={"hosts": hosts, "servers": servers}), tree
