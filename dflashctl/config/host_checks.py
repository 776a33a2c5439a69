"""What a hosts.yaml must hold to beyond the shape of its values: names that exist, ways that end, no secrets."""

import ipaddress
import re
from collections.abc import Iterable

from dflashctl.config.hosts import REACHED_BY, HostsFile, HostSpec
from dflashctl.config.load import Key, Tree
from dflashctl.config.reserved import reserved_because
from dflashctl.config.same_machine import check_twins
from dflashctl.config.schema import dotted, nearest, refusal
from dflashctl.defaults import DEFAULT_WORKDIR, LOCAL

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Of a host or server: it stands in commands, paths and tables."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
"""Capitals only, so that a pasted token is not taken for a name."""
_ACCESS_KEY_ID = re.compile(r"(AKIA|ASIA)[A-Z0-9]{12,}")
_HOLDS_SECRET = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|(API|ACCESS|SECRET|PRIVATE)_KEY|ACCESS_KEY_ID)$")
_LOGIN_IN_URL = re.compile(r"https?://([^/@\s]+)@")


def check_hosts(content: HostsFile, tree: Tree) -> None:
    """Raises ConfigError with file, line and path of the first thing that cannot be."""
    for name, host in content.hosts.items():
        key = ("hosts", name)
        _check_name(name, key, tree)
        _check_reach(name, host, key, tree)
        _check_paths(host, key, tree)
        _check_secrets(host, key, tree)
    _check_ways(content, tree)
    check_twins(content, tree)
    _check_references(content, tree)
    for name, endpoint in content.s3.items():
        _refuse_password((endpoint.endpoint_url,), ("s3", name, "endpoint_url"), tree)
        for field in ("access_key_variable", "secret_key_variable"):
            _check_secret_name(getattr(endpoint, field), ("s3", name, field), tree)


def _check_name(name: str, key: Key, tree: Tree) -> None:
    if not NAME.fullmatch(name):
        raise refusal(tree, key, f"{name!r} cannot be a name", "letters, digits, dot, underscore and dash")


def _check_reach(name: str, host: HostSpec, key: Key, tree: Tree) -> None:
    if name == LOCAL:
        _check_local(host, key, tree)
    if host.ssh is not None and host.address is not None:
        hint = "keep ssh for an alias in ssh_config, or address, port and user"
        raise refusal(tree, (*key, "address"), "ssh and address exclude each other", hint)
    for field in ("ssh", "address", "user", "via"):
        value = getattr(host, field)
        if value is not None and (not value or value.startswith("-") or not value.isprintable() or " " in value):
            raise refusal(tree, (*key, field), f"{value!r} cannot be one", "a plain word, as ssh would take it")
    if host.address is not None and not _is_address(host.address):
        hint = f"user and port have keys of their own beside {dotted((*key, 'address'))}"
        raise refusal(tree, (*key, "address"), f"wanted a name or address alone, found {host.address!r}", hint)


def _check_local(host: HostSpec, key: Key, tree: Tree) -> None:
    for field in REACHED_BY:
        if getattr(host, field) is not None:
            hint = "give the host another name"
            raise refusal(tree, (*key, field), "local is this machine and is not reached", hint)
    if "workdir" in host.model_fields_set:
        said = f"the work folder of this machine is {DEFAULT_WORKDIR} in the folder where you type, or --workdir"
        raise refusal(tree, (*key, "workdir"), said, "leave workdir out here, and give commands --workdir")


def _is_address(text: str) -> bool:
    if ":" not in text:
        return not set(text) & set("@/")
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _check_paths(host: HostSpec, key: Key, tree: Tree) -> None:
    if not _is_work_folder(host.workdir):
        said = f"wanted a folder that is absolute or below ~/, found {host.workdir!r}"
        hint = "for example ~/dflashctl-work or /data/dflashctl-work, with no .. in it"
        raise refusal(tree, (*key, "workdir"), said, hint)
    for field in ("python", "uv"):
        value = getattr(host, field)
        if not value or ("/" in value and not value.startswith(("/", "~/"))) or not value.isprintable():
            hint = f"for example {field}, or ~/ml-env/bin/{field}"
            raise refusal(tree, (*key, field), f"wanted a name on PATH, or a path from / or ~/, found {value!r}", hint)


def _is_work_folder(text: str) -> bool:
    """The root and the home folder are none: what a work folder holds would lie among everything else there."""
    parts = [part for part in text.removeprefix("~").split("/") if part not in ("", ".")]
    return text.startswith(("/", "~/")) and bool(parts) and ".." not in parts and text.isprintable()


def _check_secrets(host: HostSpec, key: Key, tree: Tree) -> None:
    for index, name in enumerate(host.secrets):
        _check_secret_name(name, (*key, "secrets", index), tree)
        if reason := reserved_because(name, is_secret=True):
            raise refusal(tree, (*key, "secrets", index), f"{name} is reserved: {reason}", "leave it out")
    for name, value in host.variables.items():
        at = (*key, "variables", name)
        if not _VARIABLE.fullmatch(name):
            raise refusal(tree, at, "cannot be a variable's name", "letters, digits and underscore, no digit first")
        if reason := reserved_because(name):
            raise refusal(tree, at, f"{name} is reserved: {reason}", "leave it out")
        if _HOLDS_SECRET.search(name.upper()):
            hint = f"write secrets: [{name}]; the value then comes from your own environment"
            raise refusal(tree, at, "looks like a secret, and this file holds none", hint)
        _refuse_password((value,), at, tree)
    _refuse_password(host.install_args, (*key, "install_args"), tree)
    _refuse_password(host.requirements or (), (*key, "requirements"), tree)


def _check_secret_name(name: str, key: Key, tree: Tree) -> None:
    if not _SECRET_VARIABLE.fullmatch(name) or _ACCESS_KEY_ID.fullmatch(name):
        said = f"wanted the name of an environment variable, found {len(name)} characters that are not shown"
        raise refusal(tree, key, said, "a name in capitals, like HF_TOKEN; if a secret stood here, replace it")


def _refuse_password(values: Iterable[str], key: Key, tree: Tree) -> None:
    logins = [login for value in values for login in _LOGIN_IN_URL.findall(value)]
    if any("${" not in login for login in logins):
        hint = "name the variable that holds it under secrets:, for example UV_INDEX_URL"
        raise refusal(tree, key, "an address holds a login", hint)


def _check_ways(content: HostsFile, tree: Tree) -> None:
    for name, host in content.hosts.items():
        way, hop = [name], host.via
        if hop == LOCAL:
            raise refusal(tree, ("hosts", name, "via"), "local is where every way begins", "leave via out")
        while hop in content.hosts:
            if hop in way:
                said = f"the way never ends: {' -> '.join([*way, hop])}"
                raise refusal(tree, ("hosts", name, "via"), said, "leave out via at the host that is reached directly")
            way.append(hop)
            hop = content.hosts[hop].via


def _check_references(content: HostsFile, tree: Tree) -> None:
    for index, pair in enumerate(content.relay.unreachable):
        for end, name in enumerate(pair):
            _check_exists(name, content, ("relay", "unreachable", index, end), tree)
        if pair[0] == pair[1]:
            raise refusal(tree, ("relay", "unreachable", index), f"{pair[0]} stands there twice", "name two hosts")
        if LOCAL in pair:
            said = "a host that this machine cannot reach is no use here"
            raise refusal(tree, ("relay", "unreachable", index), said, "name two other hosts")
    _check_direct(content, tree)
    for field in ("source", "destination"):
        if (named := getattr(content.relay, field)) is not None:
            _check_exists(named, content, ("relay", field), tree)
    for name, server in content.servers.items():
        _check_name(name, ("servers", name), tree)
        _check_exists(server.host, content, ("servers", name, "host"), tree)
        if "name" in server.model_fields_set and server.name != name:
            said = f"the server is called {name} already"
            raise refusal(tree, ("servers", name, "name"), said, "leave name out")


def _check_direct(content: HostsFile, tree: Tree) -> None:
    apart = {frozenset(pair) for pair in content.relay.unreachable}
    seen = set()
    for index, route in enumerate(content.relay.direct):
        key, ends = ("relay", "direct", index), (route.source, route.destination)
        for field in ("source", "destination"):
            _check_exists(getattr(route, field), content, (*key, field), tree)
        if ends[0] == ends[1]:
            raise refusal(tree, key, f"{ends[0]} stands there twice", "name two hosts")
        if LOCAL in ends:
            raise refusal(tree, key, "what this machine reaches is no route of its own", "name two other hosts")
        if frozenset(ends) in apart:
            said = f"{ends[0]} and {ends[1]} stand under relay.unreachable, too"
            raise refusal(tree, key, said, "keep one of the two")
        if ends in seen:
            raise refusal(tree, key, f"{ends[0]} to {ends[1]} stands there before", "one route for each direction")
        seen.add(ends)
        if not route.ssh or route.ssh.startswith("-") or not route.ssh.isprintable() or " " in route.ssh:
            said = f"{route.ssh!r} cannot be a name for ssh"
            raise refusal(tree, (*key, "ssh"), said, f"what {ends[0]} types after ssh to come to {ends[1]}")


def _check_exists(name: str, content: HostsFile, key: Key, tree: Tree) -> None:
    names = tuple(dict.fromkeys((*content.hosts, LOCAL)))
    if name in names:
        return
    near = nearest(name, names)
    raise refusal(
        tree, key, f"no host is called {name}", f"did you mean {near}?" if near else f"known: {', '.join(names)}"
    )
