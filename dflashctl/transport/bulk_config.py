"""A way to a host, written as an ssh_config for the system's `ssh`: it then does what our own connection does."""

import math
import os
import re
from pathlib import Path

from dflashctl.errors import ConfigError
from dflashctl.transport.ssh_config import Hop, Route

_ODD_IN_PATHS = re.compile(r'["\\$%\x00-\x1f]')
_ODD_IN_WORDS = re.compile(r'["\\\x00-\x1f]')
_FOR_ALL = """\
Host *
  BatchMode yes
  StrictHostKeyChecking yes
  UpdateHostKeys no
  CheckHostIP no
  PreferredAuthentications publickey
  Compression no
  ControlMaster no
  ControlPath none
  ClearAllForwardings yes
  RequestTTY no
  ServerAliveInterval 5
  ServerAliveCountMax 3
"""


def ssh_argv(
    ssh: str, route: Route, folder: Path, ciphers: tuple[str, ...], connect_s: float, command: str
) -> list[str]:
    """What runs a command on the last hop. Files that it needs are written into `folder`, which it needs until it has
    logged in. Ciphers: the first that the host has, too. Raises ConfigError for what ssh_config has no words for."""
    path = folder / "ssh_config"
    path.write_text(_text(route, folder, ciphers, connect_s))
    return [ssh, "-T", "-F", str(path), _name(len(route) - 1), command]


def _text(route: Route, folder: Path, ciphers: tuple[str, ...], connect_s: float) -> str:
    paths = _Paths(folder)
    hosts = [_host(route, number, paths, connect_s) for number in range(len(route))]
    return "\n".join([*hosts, f"{_FOR_ALL}  Ciphers {','.join(ciphers)}\n"])


def _name(number: int) -> str:
    return f"hop-{number}"


def _host(route: Route, number: int, paths: "_Paths", connect_s: float) -> str:
    hop = route[number]
    lines = [f"HostName {_word(hop.address).replace('%', '%%')}", f"Port {hop.port}"]
    lines += [f"User {_word(hop.user)}"] if hop.user else []
    # ssh makes the same name itself, and then also takes a key that is known without the port, as we do.
    if hop.host_key_name not in (hop.address, f"[{hop.address}]:{hop.port}"):
        lines.append(f"HostKeyAlias {_word(hop.host_key_name)}")
    lines += [f"UserKnownHostsFile {paths.several(hop.known_hosts)}"]
    lines += [f"GlobalKnownHostsFile {paths.several(hop.system_known_hosts)}"]
    lines += [] if hop.revoked_keys is None else [f"RevokedHostKeys {paths.one(hop.revoked_keys)}"]
    lines += [f"IdentityFile {paths.identity(path)}" for path in hop.identity_files] or ["IdentityFile none"]
    lines += [f"CertificateFile {paths.one(path)}" for path in hop.certificate_files]
    lines.append(f"IdentitiesOnly {'yes' if hop.has_only_those else 'no'}")
    lines.append(f"IdentityAgent {'none' if hop.agent is None else paths.one(hop.agent)}")
    lines.append(f"AddressFamily {hop.family}")
    lines += [] if hop.bind_address is None else [f"BindAddress {_word(hop.bind_address)}"]
    lines.append(f"ConnectTimeout {max(1, math.ceil(min(hop.connect_s or connect_s, connect_s)))}")
    lines += _way_to(hop, number)
    return f"Host {_name(number)}\n" + "".join(f"  {line}\n" for line in lines)


def _way_to(hop: Hop, number: int) -> list[str]:
    if number:
        return [f"ProxyJump {_name(number - 1)}"]
    return [] if hop.proxy_command is None else [f"ProxyCommand {hop.proxy_command.replace('%', '%%')}"]


def _word(text: str) -> str:
    if _ODD_IN_WORDS.search(text):
        raise ConfigError(f"{text!r} cannot be written into an ssh_config", hint="look at hosts.yaml and ssh_config")
    return f'"{text}"'


class _Paths:
    """As they are written in ssh_config. Those with letters that mean something there go by a link."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._num_links = 0

    def one(self, path: str, *endings: str) -> str:
        """`endings`: of files beside it that are found by its name."""
        if not _ODD_IN_PATHS.search(path):
            return f'"{path}"'
        link = self._folder / f"file-{self._num_links}"
        self._num_links += 1
        for ending in ("", *endings):
            Path(f"{link}{ending}").symlink_to(os.path.abspath(f"{path}{ending}"))
        return f'"{link}"'

    def several(self, paths: tuple[str, ...]) -> str:
        return " ".join(self.one(path) for path in paths) or "/dev/null"

    def identity(self, path: str) -> str:
        return self.one(path, ".pub", "-cert.pub")
