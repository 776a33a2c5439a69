"""How a host is reached: ssh_config as the system's OpenSSH reads it, with hosts.yaml on top. Opens no connection.

`ssh -G` is asked, so that Include, Match, canonical names and whatever else its version knows count here too.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dflashctl.config.hosts import HostsFile, HostSpec
from dflashctl.config.ssh import SshSettings
from dflashctl.errors import ConfigError
from dflashctl.transport import ssh_config_reader

MOST_HOPS = 8
_TOKEN = re.compile(r"%(.)|\$\{(\w+)\}")


@dataclass(frozen=True)
class Hop:
    """One machine on the way to a host, the last one the host itself. Equal hops share a connection."""

    alias: str = field(compare=False)
    """As people call it."""
    by_hand: str = field(compare=False)
    """What to give to `ssh` to come there without dflashctl."""
    address: str
    port: int
    user: str
    host_key_name: str
    """What known_hosts calls it: HostKeyAlias, else the address, with its port if that is not 22."""
    identity_files: tuple[str, ...] = ()
    certificate_files: tuple[str, ...] = ()
    has_only_those: bool = False
    """IdentitiesOnly: of the agent's keys only the ones that the files name."""
    agent: str | None = None
    """The agent's socket."""
    known_hosts: tuple[str, ...] = ()
    """The user's files; a key seen for the first time is added to the first."""
    system_known_hosts: tuple[str, ...] = ()
    revoked_keys: str | None = None
    """A file of keys that no host may show."""
    is_strict: bool = False
    """StrictHostKeyChecking yes: a key seen for the first time is refused."""
    hashes_known_hosts: bool = False
    family: str = "any"
    """any, inet or inet6."""
    bind_address: str | None = None
    proxy_command: str | None = None
    """Its standard input and output are the way there; counts for the first hop only."""
    connect_s: float | None = None


Route = tuple[Hop, ...]


def route_to(name: str, hosts: HostsFile, settings: SshSettings) -> Route:
    """The way to a host of the inventory. Raises ConfigError."""
    return _Router(hosts, settings).to_host(name, ())


class _Router:
    def __init__(self, hosts: HostsFile, settings: SshSettings) -> None:
        self._hosts = hosts.hosts
        self._settings = settings

    def to_host(self, name: str, seen: tuple[str, ...]) -> Route:
        self._refuse_loop(name, seen)
        spec = self._hosts[name]
        options = _options_of(spec)
        before: Route | None = None
        if spec.via is not None:
            seen = (*seen, name)
            before = (
                self.to_host(spec.via, seen) if spec.via in self._hosts else self.to_alias(spec.via, (), None, seen)
            )
            options = (*options, "-o", "ProxyJump=none", "-o", "ProxyCommand=none")
        target = spec.ssh or spec.address or name
        route = self.to_alias(target, options, before, seen)
        last = replace(route[-1], alias=name, by_hand=_by_hand(spec, target, before, self._settings))
        if spec.identity_file is not None:
            last = replace(last, identity_files=(str(Path(spec.identity_file).expanduser()),), has_only_those=True)
        return (*route[:-1], last)

    def to_alias(self, alias: str, options: tuple[str, ...], before: Route | None, seen: tuple[str, ...]) -> Route:
        """`before`: the hops that come first; None: those that ssh_config says."""
        found = ssh_config_reader.read(alias, options, self._settings)
        hop = _hop(alias, options, found, self._settings)
        if before is None:
            jumps = _one(found, "proxyjump")
            before = () if jumps in (None, "none") else self._jumps(jumps, (*seen, alias))
        if len(before) >= MOST_HOPS:
            raise ConfigError(f"the way to {alias} has more than {MOST_HOPS} hops", hint="look at ProxyJump and via")
        return (*before, hop)

    def _jumps(self, jumps: str, seen: tuple[str, ...]) -> Route:
        """As OpenSSH: only the first jump of a list follows its own ProxyJump."""
        route: Route | None = None
        for jump in jumps.split(","):
            alias, options = _jump_options(jump.strip())
            self._refuse_loop(alias, seen)
            route = self.to_alias(alias, options, route, seen)
        assert route is not None
        return route

    def _refuse_loop(self, name: str, seen: tuple[str, ...]) -> None:
        if name in seen:
            raise ConfigError(
                f"the way to {seen[0]} leads in a circle: {' -> '.join((*seen, name))}",
                hint="look at via and ProxyJump",
            )


def _by_hand(spec: HostSpec, target: str, before: Route | None, settings: SshSettings) -> str:
    words = list(_file(settings))
    if before:
        words += ["-J", ",".join(f"{hop.user}@{hop.address}:{hop.port}" for hop in before)]
    for option, value in (("-p", spec.port), ("-l", spec.user), ("-i", spec.identity_file)):
        words += [] if value is None else [option, str(value)]
    return shlex.join([*words, target])


def _file(settings: SshSettings) -> tuple[str, ...]:
    return () if settings.config is None else ("-F", str(settings.config))


def _options_of(spec: HostSpec) -> tuple[str, ...]:
    options: tuple[str, ...] = ()
    if spec.address is not None:
        options += ("-o", f"HostName={spec.address}")
    if spec.port is not None:
        options += ("-p", str(spec.port))
    if spec.user is not None:
        options += ("-l", spec.user)
    return options


def _jump_options(jump: str) -> tuple[str, tuple[str, ...]]:
    """`[user@]host[:port]`, or the same as ssh://, as a name and the options of ssh."""
    rest = jump.removeprefix("ssh://").rstrip("/")
    user, _, place = rest.rpartition("@")
    host, port = place, ""
    if found := re.fullmatch(r"\[(.+)\](?::(\d+))?", place):
        host, port = found[1], found[2] or ""
    elif place.count(":") == 1:
        host, _, port = place.partition(":")
    options: tuple[str, ...] = ("-p", port) if port else ()
    return host, options + (("-l", user) if user else ())


def _hop(alias: str, options: tuple[str, ...], found: ssh_config_reader.Options, settings: SshSettings) -> Hop:
    address = (_one(found, "hostname") or alias).lower()
    port = int(_one(found, "port") or 22)
    user = _one(found, "user") or ""
    tokens = {"h": address, "p": str(port), "r": user, "n": alias, **ssh_config_reader.own_tokens()}
    fill = _Filler(tokens, settings.variables)
    strict = _one(found, "stricthostkeychecking") or "ask"
    revoked = _one(found, "revokedhostkeys")
    connect_s = _one(found, "connecttimeout")
    command = _one(found, "proxycommand")
    name = _one(found, "hostkeyalias")
    return Hop(
        alias=alias,
        by_hand=shlex.join([*_file(settings), *options, alias]),
        address=address,
        port=port,
        user=user,
        host_key_name=name or (address if port == 22 else f"[{address}]:{port}"),
        identity_files=tuple(fill.path(path) for path in found.get("identityfile", ()) if path != "none"),
        certificate_files=tuple(fill.path(path) for path in found.get("certificatefile", ()) if path != "none"),
        has_only_those=_one(found, "identitiesonly") == "yes",
        agent=_agent(_one(found, "identityagent"), fill, settings),
        known_hosts=tuple(fill.path(path) for path in _files(found, "userknownhostsfile")),
        system_known_hosts=tuple(fill.path(path) for path in _files(found, "globalknownhostsfile")),
        revoked_keys=None if revoked in (None, "none") else fill.path(revoked),
        is_strict=strict in ("yes", "true"),
        hashes_known_hosts=_one(found, "hashknownhosts") == "yes",
        family=_one(found, "addressfamily") or "any",
        bind_address=_one(found, "bindaddress"),
        proxy_command=None if command in (None, "none") else fill.text(command),
        connect_s=float(connect_s) if connect_s and connect_s.isdigit() else None,
    )


def _one(found: ssh_config_reader.Options, key: str) -> str | None:
    values = found.get(key, ())
    return values[0] if values else None


def _files(found: ssh_config_reader.Options, key: str) -> list[str]:
    """ssh -G writes several paths on one line, unquoted: one that holds a space is told from two by looking."""
    text = _one(found, key)
    if text is None or text == "none":
        return []
    words, files = text.split(" "), []
    while words:
        length = next((n for n in range(len(words), 1, -1) if Path(" ".join(words[:n])).expanduser().is_file()), 1)
        files.append(" ".join(words[:length]))
        words = words[length:]
    return files


def _agent(told: str | None, fill: "_Filler", settings: SshSettings) -> str | None:
    if told == "none":
        return None
    if told in (None, "SSH_AUTH_SOCK"):
        return settings.agent
    if told.startswith("$") and not told.startswith("${"):
        return settings.variables.get(told[1:])
    return fill.path(told)


class _Filler:
    """Puts values in the place of %h, %d, ~ and ${NAME}."""

    def __init__(self, tokens: Mapping[str, str], variables: Mapping[str, str]) -> None:
        self._tokens = {**tokens, "%": "%"}
        self._variables = variables

    def text(self, text: str) -> str:
        def value(found: re.Match[str]) -> str:
            if found[2] is not None:
                return self._variables.get(found[2], found[0])
            return self._tokens.get(found[1], found[0])

        return _TOKEN.sub(value, text)

    def path(self, text: str) -> str:
        filled = self.text(text)
        return f"{ssh_config_reader.home()}{filled[1:]}" if filled.startswith("~/") else str(Path(filled).expanduser())
