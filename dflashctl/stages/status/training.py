"""What a run says of its training, with the trend of its loss: a rise must be seen by whoever looks."""

from statistics import fmean

from dflashctl.facts.runs import TAIL_BYTES, RunState
from dflashctl.stages.status.fact import Fact
from dflashctl.transport.tail import read_last_events
from dflashctl_remote.spec.events import Step

WINDOW = 20
"""Steps in each of the two means that are compared."""
RISE = 1.03
"""A mean that is so many times the one before is called risen; means of 20 steps of a healthy run stay within."""


def run_facts(state: RunState, now_s: float) -> tuple[Fact, ...]:
    """Facts out of the run's own events."""
    step = state.last_step
    if step is None or state.state == "unreadable":
        return ()
    source = str(state.run.events_path)
    steps = [event for event in read_last_events(state.run.events_path, TAIL_BYTES) if isinstance(event, Step)]

    def reported(name: str, text: str, value: float, unit: str = "", warning: str = "") -> Fact:
        return Fact(name, text, "reported", source, step.at_s, value, unit, warning)

    loss, warning = trend(steps)
    facts = [
        reported("step", f"{step.step:,} of {step.num_steps:,}", step.step),
        reported("loss", loss, step.loss, "nats", warning),
        reported("accuracy", f"{100 * step.accuracy:.1f} %, teacher-forced: not an acceptance", step.accuracy),
        reported(
            "throughput",
            f"{step.context_tokens_per_s:,.0f} context tokens/s at r = {step.block_ratio:.2f}",
            step.context_tokens_per_s,
            "tokens/s",
        ),
    ]
    left_s = time_left_s(steps)
    if state.state == "running" and left_s is not None:
        text = f"{left_s / 60:.0f} min at the pace of the last {len(steps)} steps"
        facts.append(Fact("time left", text, "estimated", source, step.at_s, left_s, "s"))
    if state.last_checkpoint is not None:
        saved = state.last_checkpoint
        facts.append(Fact("checkpoint", f"step {saved.step:,}", "reported", saved.path, saved.at_s, saved.step))
    return tuple(facts)


def trend(steps: list[Step]) -> tuple[str, str]:
    """The loss now against the earliest steps at hand, and a warning if it rose."""
    now = steps[-1]
    if len(steps) < 2 * WINDOW:
        return f"{now.loss:.3f}", ""
    late, early = fmean(s.loss for s in steps[-WINDOW:]), fmean(s.loss for s in steps[:WINDOW])
    text = f"{late:.3f} (mean of {WINDOW} steps; {early:.3f} around step {steps[WINDOW // 2].step:,})"
    if late > RISE * early:
        return text, f"rising: {early:.3f} -> {late:.3f} since step {steps[WINDOW // 2].step:,}"
    return text, ""


def time_left_s(steps: list[Step]) -> float | None:
    """By the mean pace of the steps at hand; None if there is only one."""
    if len(steps) < 2 or steps[-1].step <= steps[0].step:
        return None
    pace_s = (steps[-1].at_s - steps[0].at_s) / (steps[-1].step - steps[0].step)
    return pace_s * (steps[-1].num_steps - steps[-1].step)
