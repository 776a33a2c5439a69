"""What an environment for jobs is to hold, and the name that follows from it. Pure: makes nothing, asks nobody."""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

from dflashctl.config.hosts import HostSpec
from dflashctl.errors import ConfigError

Kind = Literal["uv", "pip"]
NEEDED_MODULES = ("torch", "transformers", "numpy", "safetensors", "pydantic", "jinja2")
"""Looked for where jobs run under an interpreter as it is."""
_REQUIREMENTS = Path(__file__).parent / "requirements.txt"
_CREDENTIALS = re.compile(r"://[^/\s]*@")
_VARIABLES = {
    "uv": {
        "--index-url": "UV_INDEX_URL",
        "-i": "UV_INDEX_URL",
        "--default-index": "UV_DEFAULT_INDEX",
        "--extra-index-url": "UV_EXTRA_INDEX_URL",
        "--index": "UV_INDEX",
        "--find-links": "UV_FIND_LINKS",
        "-f": "UV_FIND_LINKS",
    },
    "pip": {
        "--index-url": "PIP_INDEX_URL",
        "-i": "PIP_INDEX_URL",
        "--extra-index-url": "PIP_EXTRA_INDEX_URL",
        "--find-links": "PIP_FIND_LINKS",
        "-f": "PIP_FIND_LINKS",
        "--proxy": "PIP_PROXY",
    },
}
"""Options that may hold a password, and the variable that says the same and that other users do not see."""


@dataclass(frozen=True)
class EnvironmentPlan:
    """For one host. `install_args` and `requirements` are as people may see them: passwords in URLs are masked."""

    host: str
    kind: Kind | None
    """None: jobs run under `python` as it is."""
    python: str
    """As in hosts.yaml: a path, a name on PATH, or for uv a version."""
    uv: str
    requirements: tuple[str, ...]
    install_args: tuple[str, ...]
    modules: tuple[str, ...]
    """What `python` must have if it is used as it is."""
    env: tuple[tuple[str, str], ...] = ()
    """Of the host's jobs, hence also of the one that makes the environment."""
    argv: tuple[str, ...] = field(default=(), repr=False)
    """The arguments that other users of the host may see in its list of processes."""
    secrets: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Variables that only the making is given."""

    def named(self, python_version: str, platform: str) -> str:
        """The environment's name on a host with that interpreter. A password's change makes no other one."""
        parts = [self.kind, python_version, platform, sorted(self.requirements), list(self.install_args)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def plan_environment(
    host: HostSpec,
    name: str,
    *,
    secrets: tuple[tuple[str, str], ...] = (),
    modules: tuple[str, ...] = NEEDED_MODULES,
) -> EnvironmentPlan:
    """`secrets`: values of the host's secrets; those that speak to uv or pip are given to the making.

    Raises ConfigError for a password in an argument that cannot be kept from the host's list of processes.
    """
    wanted = pinned_requirements() if host.requirements is None else host.requirements
    argv, hidden = _part(name, host.env, host.install_args) if host.env else ((), ())
    told = tuple((key, value) for key, value in secrets if key.startswith(("UV_", "PIP_")))
    return EnvironmentPlan(
        host=name,
        kind=host.env,
        python=host.python,
        uv=host.uv,
        requirements=tuple(masked(line) for line in wanted),
        install_args=tuple(masked(word) for word in host.install_args),
        modules=modules,
        env=tuple(host.variables.items()),
        argv=argv,
        secrets=(("MAKE_REQUIREMENTS", "".join(f"{line}\n" for line in wanted)), *hidden, *told),
    )


@cache
def pinned_requirements() -> tuple[str, ...]:
    """dflashctl[train] and all that it needs, as constraints.txt pins it."""
    lines = _REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    return tuple(line for line in lines if line and not line.startswith("#"))


def masked(text: str) -> str:
    """Without what stands between `://` and `@`."""
    return _CREDENTIALS.sub("://***@", text)


def _part(host: str, kind: Kind, args: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Arguments for an argument list, and variables for those options of which one value holds a password."""
    options = list(_options(args))
    known = _VARIABLES[kind]
    hidden: dict[str, list[str]] = {}
    for option, value in options:
        if _CREDENTIALS.search(option + (value or "")):
            if option not in known:
                raise ConfigError(
                    f"install_args of host {host} hold a password in {masked(option)}, which everybody there would see",
                    hint=f"put it into a secret of that host, for example {kind.upper()}_INDEX_URL",
                )
            hidden[known[option]] = []
    argv: list[str] = []
    for option, value in options:
        if (variable := known.get(option, "")) in hidden and value is not None:
            # All of its values: given both ways, one way would win.
            hidden[variable].append(value)
        else:
            argv += [option] if value is None else [option, value]
    separator = "," if kind == "uv" else " "
    return tuple(argv), tuple(
        (name, (separator if name == "UV_FIND_LINKS" else " ").join(values)) for name, values in hidden.items()
    )


def _options(args: tuple[str, ...]) -> Iterator[tuple[str, str | None]]:
    """Each option with its value, None for what has none or is not known to have one."""
    words = iter(args)
    for word in words:
        name, joined, value = word.partition("=")
        if any(name in known for known in _VARIABLES.values()):
            yield (name, value) if joined else (name, next(words, None))
        else:
            yield word, None
