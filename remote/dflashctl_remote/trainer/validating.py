"""When a run validates, and what it lends for it."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from dflashctl_remote.drafter.model import Drafter, FrozenEnds
from dflashctl_remote.drafter.objective import AttentionName
from dflashctl_remote.spec.events import Validated
from dflashctl_remote.target.load import Target
from dflashctl_remote.trainer.setup import Parts
from dflashctl_remote.trainer.validation import Abandoned, is_due, validate


@dataclass(frozen=True)
class _Lent:
    drafter: Drafter
    target: Target
    ends: FrozenEnds
    attention: AttentionName


class Validating:
    """In the first process of a run. The stages before the drafters go on meanwhile, until their queues are full."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._began_s = time.perf_counter()
        self._spent_s = 0.0
        self._last_s = 0.0

    def after(self, step: int, is_asked_to_stop: Callable[[], bool]) -> Validated | None:
        """The validation of this step, if one is due and no stop cuts it short."""
        parts, held_out = self._parts, self._parts.held_out
        if not parts.ranks.is_first or held_out is None or held_out.is_empty:
            return None
        spec = parts.spec
        if not is_due(
            spec.validation,
            step=step,
            num_steps=spec.num_steps,
            checkpoint_every_steps=spec.checkpoint.every_steps,
            spent_s=self._spent_s,
            last_s=self._last_s,
            elapsed_s=time.perf_counter() - self._began_s,
        ):
            return None
        lent = _Lent(parts.drafters[0], parts.targets[0], parts.ends[0], parts.attention)
        try:
            validated = validate(lent, held_out, step=step, is_asked_to_stop=is_asked_to_stop)
        except Abandoned:
            return None
        self._last_s = validated.seconds_s
        self._spent_s += self._last_s
        return validated
