"""hosts.yaml: which hosts there are, how to reach each, and what it is for. Holds names and paths, never a secret."""

from typing import Literal

from pydantic import Field

from dflashctl.config.servers import ServerSpec
from dflashctl_remote.spec.base import Spec

REACHED_BY = ("ssh", "address", "port", "user", "via", "identity_file")
"""Fields that this machine has not."""
Role = Literal["train", "serve", "evaluate", "generate", "store"]


class HostSpec(Spec):
    """One host. What is not given here, ssh_config gives: user, port, keys, jumps, agent."""

    ssh: str | None = None
    """Alias in ssh_config; None: the host's own name, if no address is given."""
    address: str | None = None
    port: int | None = Field(default=None, gt=0, le=65535)
    user: str | None = None
    via: str | None = None
    """Another host of this file, or an alias in ssh_config, to jump through."""
    identity_file: str | None = None
    workdir: str = "~/dflashctl-work"
    """Absolute, or below `~/`: the home folder there. Not of `local`: commands take its work folder from --workdir."""
    python: str = "python3"
    """Interpreter that environments are made with; without `env`, the one that jobs run under as it is. Of `local`, if
    nothing else is written, the one that dflashctl runs under."""
    env: Literal["uv", "pip"] | None = None
    """What makes environments of their own for jobs, each named by what is in it."""
    uv: str = "uv"
    """Looked for on PATH, in ~/.local/bin and in ~/.cargo/bin."""
    requirements: tuple[str, ...] | None = None
    """Of such an environment; None: those of dflashctl[train], pinned."""
    install_args: tuple[str, ...] = ()
    """Given to `uv pip install` or `pip install`, for example an index of wheels."""
    variables: dict[str, str] = Field(default_factory=dict)
    """Environment of jobs there, for example HF_HOME; no names that reserved.py lists."""
    secrets: tuple[str, ...] = ()
    """Names of the operator's environment variables that jobs there are given, through a file that only they read."""
    roles: tuple[Role, ...] = ()
    protected: bool = False
    """stop, resume, replace and changes of environments then need `--touch NAME`."""


class DirectRoute(Spec):
    """A host that reaches another by itself: bytes between them need not pass this machine."""

    source: str
    destination: str
    ssh: str
    """What the source's own ssh calls it: a name that its ssh_config and known_hosts know; its key asks nothing."""


class RelaySection(Spec):
    unreachable: tuple[tuple[str, str], ...] = ()
    """Pairs of hosts that cannot reach each other: everything between them goes through the operator's machine."""
    direct: tuple[DirectRoute, ...] = ()
    source: str | None = None
    """Where `relay ckpt` takes from if --from is not given."""
    destination: str | None = None


class S3Spec(Spec):
    endpoint_url: str
    bucket: str
    region: str = "us-east-1"
    addressing: Literal["path", "virtual"] = "path"
    profile: str | None = None
    """Of the credentials file; else the two names below."""
    access_key_variable: str = "AWS_ACCESS_KEY_ID"
    """Name of the environment variable, never its value."""
    secret_key_variable: str = "AWS_SECRET_ACCESS_KEY"


class HostsFile(Spec):
    hosts: dict[str, HostSpec] = Field(default_factory=dict)
    """`local`, this machine, is always there; an entry of that name says how jobs run on it, never where or by which
    way."""
    relay: RelaySection = RelaySection()
    s3: dict[str, S3Spec] = Field(default_factory=dict)
    servers: dict[str, ServerSpec] = Field(default_factory=dict)
