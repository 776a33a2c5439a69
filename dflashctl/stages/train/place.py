"""Where a run is, or will be."""

from collections.abc import Callable
from dataclasses import dataclass

from dflashctl.config.hosts import HostSpec
from dflashctl.transport.shell import Shell


@dataclass(frozen=True)
class Place:
    """A host, and a work folder there."""

    host: str
    spec: HostSpec
    shell: Shell
    workdir: str
    """As it was written: absolute, or below `~/`."""
    options: str = ""
    """What must be typed after a command to come to the same place."""
    protected_twins: Callable[[], tuple[str, ...]] = tuple
    """Names of protected hosts that are the same machine; asked for only where something is to be touched."""
