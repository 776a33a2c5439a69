"""The engines that exist, by name."""

from dflashctl.engines.base import Engine
from dflashctl.engines.reference.engine import ReferenceEngine
from dflashctl.errors import ConfigError

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (ReferenceEngine(),)}


def engine_of(name: str) -> Engine:
    """Raises ConfigError naming those that exist."""
    if name not in ENGINES:
        raise ConfigError(f"engine {name} is not known", hint=f"known: {', '.join(sorted(ENGINES))}")
    return ENGINES[name]
