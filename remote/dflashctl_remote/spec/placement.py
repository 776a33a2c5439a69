"""Where the stages of a run live: how many targets and drafters, on which devices, in how many processes."""

import re

from pydantic import Field, model_validator

from dflashctl_remote.spec.base import Spec

COLOCATED = "colocated"
_SPLIT = re.compile(r"([1-9]\d?)\+([1-9]\d?)")


class PlacementSpec(Spec):
    layout: str = COLOCATED
    """colocated: each process has a target and a drafter on one device. N+M: one process with N target stages and M
    drafters, the drafters on the last M GPUs, the targets in turn on the others."""
    ranks: int = Field(default=1, gt=0)
    """Processes of a colocated run on a host, one GPU each, data parallel; started by torchrun."""
    nodes: int = Field(default=1, gt=0)
    """Hosts of a colocated run; how each is started is in docs/scaling.md."""
    rows_ahead: int = Field(default=4, gt=0)
    """Packed rows that the loader keeps ready."""
    states_ahead: int = Field(default=2, ge=0)
    """Batches of hidden states that wait between targets and drafters; 0: no threads, the stages take turns."""

    @model_validator(mode="after")
    def _is_possible(self) -> "PlacementSpec":
        if self.layout != COLOCATED and not _SPLIT.fullmatch(self.layout):
            raise ValueError(f"layout must be colocated or N+M, as in 3+1, not {self.layout!r}")
        if self.layout != COLOCATED and (self.ranks, self.nodes) != (1, 1):
            raise ValueError(f"layout {self.layout} is one process; ranks and nodes are for colocated")
        if (self.num_targets, self.num_drafters) != (1, 1) and self.states_ahead == 0:
            raise ValueError(f"layout {self.layout} needs states_ahead of at least 1")
        return self

    @property
    def num_targets(self) -> int:
        """Target stages of one process."""
        return self._counts[0]

    @property
    def num_drafters(self) -> int:
        """Drafters of one process."""
        return self._counts[1]

    @property
    def num_gpus(self) -> int:
        """That a host needs, with one for each stage and rank."""
        return self.ranks if self.layout == COLOCATED else self.num_targets + self.num_drafters

    @property
    def world_size(self) -> int:
        return self.ranks * self.nodes

    @property
    def num_shares(self) -> int:
        """Processes, or drafters of the one process, that share the batches of an optimizer step evenly."""
        return self.world_size * self.num_drafters

    @property
    def _counts(self) -> tuple[int, int]:
        found = _SPLIT.fullmatch(self.layout)
        return (1, 1) if found is None else (int(found[1]), int(found[2]))


def devices_of(placement: PlacementSpec, num_gpus: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """GPU numbers of the target stages and of the drafters of a split process that sees `num_gpus` GPUs.

    Raises ValueError if the drafters leave no GPU. One GPU is shared by all.
    """
    if num_gpus == 1:
        return (0,) * placement.num_targets, (0,) * placement.num_drafters
    if placement.num_drafters >= num_gpus:
        raise ValueError(f"layout {placement.layout} leaves no GPU of {num_gpus} to its targets")
    first_drafter = num_gpus - placement.num_drafters
    targets = tuple(n % first_drafter for n in range(placement.num_targets))
    return targets, tuple(range(first_drafter, num_gpus))
