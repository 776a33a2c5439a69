"""The values of secrets, out of the environment of whoever types: the only place that reads them."""

from collections.abc import Mapping

from dflashctl.errors import ConfigError


def secret_values(names: tuple[str, ...], host: str, environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Raises ConfigError for one that is not set."""
    missing = [name for name in names if not environment.get(name)]
    if missing:
        raise ConfigError(
            f"host {host} is to be given {', '.join(missing)}, not set in the environment here",
            hint=f"export {missing[0]}=..., or take it out of that host's secrets in hosts.yaml",
        )
    return tuple((name, environment[name]) for name in names)
