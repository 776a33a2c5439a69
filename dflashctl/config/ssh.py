"""What of the environment says how hosts are reached. Everything else is in hosts.yaml and ssh_config."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SSH_CONFIG_VARIABLE = "DFLASHCTL_SSH_CONFIG"


@dataclass(frozen=True)
class SshSettings:
    config: Path | None = None
    """Read instead of ~/.ssh/config and the system's; None: those two."""
    agent: str | None = None
    """Socket of the running agent."""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """What ${NAME} stands for in ssh_config's paths."""


def ssh_settings(environment: Mapping[str, str]) -> SshSettings:
    config = environment.get(SSH_CONFIG_VARIABLE)
    return SshSettings(
        config=Path(config).expanduser() if config else None,
        agent=environment.get("SSH_AUTH_SOCK") or None,
        variables=environment,
    )
