"""ssh_config's options for one name: from the system's OpenSSH, or from the file itself where there is no OpenSSH."""

import getpass
import os
import pwd
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from dflashctl.config.ssh import SshSettings
from dflashctl.errors import ConfigError

ASK_S = 10.0
Options = Mapping[str, tuple[str, ...]]
"""Lower-case keyword to its values, in order."""
_NEEDS_OPENSSH = re.compile(r"^\s*(include|match)\b", re.IGNORECASE | re.MULTILINE)


def read(alias: str, options: tuple[str, ...], settings: SshSettings) -> Options:
    """What holds for `ssh OPTIONS ALIAS`. Raises ConfigError."""
    if not alias or alias.startswith("-"):
        raise ConfigError(f"{alias!r} is no name of a host", hint="look at ssh, address and via in hosts.yaml")
    ssh = shutil.which("ssh")
    if ssh is None:
        return _read_file(alias, options, settings)
    return _read_by_openssh(ssh, alias, options, settings, _stamp(settings))


def _stamp(settings: SshSettings) -> tuple[int, int] | None:
    """Another one once the file is another. What it includes does not change under a command's hands."""
    try:
        found = (settings.config or home() / ".ssh" / "config").stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=256)
def _read_by_openssh(
    ssh: str, alias: str, options: tuple[str, ...], settings: SshSettings, stamp: tuple[int, int] | None
) -> Options:
    """A command comes by the same hosts again and again, and each time costs a process."""
    file = () if settings.config is None else ("-F", str(settings.config))
    try:
        # -T: it has no terminal to speak of.
        done = subprocess.run(
            (ssh, "-G", "-T", *file, *options, "--", alias),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=dict(settings.variables) or None,
            timeout=ASK_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"`ssh -G {alias}` said nothing for {ASK_S:g} s", hint="look at Match exec in ssh_config"
        ) from error
    if done.returncode != 0:
        reason = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it says nothing"])[0]
        raise ConfigError(f"ssh_config cannot be used for {alias}: {reason}", hint=f"ssh -G {alias}")
    return parse(done.stdout.decode("utf-8", "replace"))


def parse(text: str) -> Options:
    """Lines of `keyword value`."""
    found: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        found[key.lower()] = (*found.get(key.lower(), ()), value)
    return found


def home() -> Path:
    """What OpenSSH means by ~, which is not always $HOME."""
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return Path.home()


def own_tokens() -> dict[str, str]:
    """What %-tokens of ssh_config stand for on this machine."""
    full = socket.gethostname()
    return {
        "d": str(home()),
        "u": getpass.getuser(),
        "i": str(os.getuid()),
        "l": full,
        "L": full.partition(".")[0],
    }


def _read_file(alias: str, options: tuple[str, ...], settings: SshSettings) -> Options:
    """Raises ConfigError for a file that says things which only OpenSSH can tell."""
    from paramiko import ConfigParseError, SSHConfig

    path = settings.config or home() / ".ssh" / "config"
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    if _NEEDS_OPENSSH.search(text):
        raise ConfigError(
            f"{path} has Include or Match, which only OpenSSH can read, and there is no `ssh` on this machine",
            hint="install the OpenSSH client",
        )
    try:
        said: dict[str, Any] = dict(SSHConfig.from_text(text).lookup(alias))
    except ConfigParseError as error:
        raise ConfigError(f"{path} cannot be used for {alias}: {error}") from error
    found: dict[str, tuple[str, ...]] = {
        key: tuple(value) if isinstance(value, list) else (str(value),) for key, value in said.items()
    }
    own = home() / ".ssh"
    found.setdefault("identityfile", tuple(str(own / f"id_{kind}") for kind in ("rsa", "ecdsa", "ed25519")))
    found.setdefault("userknownhostsfile", (str(own / "known_hosts"),))
    found.setdefault("user", (getpass.getuser(),))
    given = dict(zip(options[::2], options[1::2], strict=True))
    for flag, key in (("-p", "port"), ("-l", "user")):
        if flag in given:
            found[key] = (given[flag],)
    for flag, value in zip(options[::2], options[1::2], strict=True):
        if flag == "-o":
            key, _, told = value.partition("=")
            found[key.lower()] = (told,)
    return found
