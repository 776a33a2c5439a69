"""What is asked of a relay, and of whoever knows what it is that is moved."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from dflashctl.operations.relay.agent import Agent
from dflashctl.operations.relay.tree import Known, Tree


@dataclass(frozen=True)
class Wanted:
    """What is to be moved. Paths as written for their hosts."""

    source: str
    dest: str
    is_checkpoint: bool
    with_state: bool = False
    replace: bool = False
    encode: str = "auto"
    """auto, always or no."""
    num_lanes: int | None = None
    """None: as the round trip has it."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Kept on the target beside what has come: what people must know to go on with it."""


class Job(Protocol):
    """A checkpoint, or any other path. Asked anew in every try: what it has chosen once it keeps."""

    def choose(self, chief: Agent, keeper: Agent) -> Wanted | None:
        """What is to be moved; None: it is there already."""
        ...

    def prepare(self, chief: Agent, keeper: Agent, tree: Tree) -> tuple[Tree, Known, Mapping[str, str]]:
        """Of what was found at the source: what is moved, what of that the target knows, and sha256s by path.

        Of files without one the source is asked.
        """
        ...
