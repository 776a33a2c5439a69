"""What the stages of a run did with their time of late, from the steps that it told of. Pure."""

from collections.abc import Sequence
from statistics import fmean

from dflashctl_remote.spec.events import StageLoad, Step

RECENT_STEPS = 20
"""A single step's shares are noise where steps are short."""


def recent_loads(steps: Sequence[Step]) -> tuple[StageLoad, ...]:
    """Means over the last steps of the same stages, oldest first in; nothing where the last measured none."""
    if not steps or not steps[-1].stages:
        return ()
    kinds = [(stage.name, stage.count) for stage in steps[-1].stages]
    alike = []
    for step in reversed(steps[-RECENT_STEPS:]):
        if [(stage.name, stage.count) for stage in step.stages] != kinds:
            break
        alike.append(step.stages)
    return tuple(
        StageLoad(
            name=name,
            count=count,
            busy=fmean(stages[place].busy for stages in alike),
            starved=fmean(stages[place].starved for stages in alike),
            held_up=fmean(stages[place].held_up for stages in alike),
        )
        for place, (name, count) in enumerate(kinds)
    )


def limiting_of(loads: Sequence[StageLoad]) -> str | None:
    """The busiest: a faster one would make the run faster. None where nothing was measured."""
    return max(loads, key=lambda load: load.busy).name if any(load.busy for load in loads) else None


def waits_of(load: StageLoad) -> str:
    """What it did beside its work, where that is a hundredth of the time or more."""
    waits = (("starved", load.starved), ("held up", load.held_up))
    return ", ".join(f"{100 * share:.0f} % {what}" for what, share in waits if share >= 0.01)
