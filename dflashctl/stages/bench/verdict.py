"""One paragraph on what came out and why, made of measured figures alone."""

from collections.abc import Sequence

from dflashctl.stages.bench.account import ServerLabel
from dflashctl.stages.bench.figures import Interval
from dflashctl.stages.bench.plan import SINGLE
from dflashctl.stages.bench.report import Row, StepCost

BOUND_BY_ARITHMETIC = 0.5
"""A step of K + 1 tokens that costs more than this share of K + 1 plain steps gains little by checking at once."""


def verdict(
    speedup: float | None,
    interval: Interval | None,
    tau: float | None,
    cost: StepCost | None,
    server: ServerLabel,
    rows: Sequence[Row],
    *,
    has_single: bool,
) -> str:
    if speedup is None:
        why = "no prompt was decoded by both arms" if has_single else f"{SINGLE} was not asked for"
        text = f"No paired speed-up: {why}."
    else:
        text = f"{_headline(speedup, interval)}."
    if cost is not None and tau is not None:
        text += f" {_why(tau, cost, server)}"
    loads = _by_load(rows)
    return f"{text} {loads}" if loads else text


def _headline(speedup: float, interval: Interval | None) -> str:
    if interval is None:
        sure = ", too few prompts to say how sure that is"
        return f"Decoding runs at {speedup:.2f} times the plain rate{sure}"
    sure = f"95 % interval {interval.low:.2f} to {interval.high:.2f}"
    if interval.low > 1:
        return f"Speculation is faster than plain decoding: {speedup:.2f} times the rate ({sure})"
    if interval.high < 1:
        return f"Speculation is SLOWER than plain decoding: {speedup:.2f} times the rate ({sure})"
    return f"No difference from plain decoding can be told: {speedup:.2f} times the rate ({sure})"


def _why(tau: float, cost: StepCost, server: ServerLabel) -> str:
    steps = cost.plain_steps_per_verify_step
    text = (
        f"One draft-and-verify step costs {steps:.2f} plain decode steps here ({1000 * cost.verify_step_s:.1f} ms "
        f"against {1000 * cost.plain_step_s:.1f} ms), so break-even is at tau {steps:.2f}; measured tau is {tau:.2f}."
    )
    if server.num_draft_tokens is None or tau >= steps:
        return text
    width = server.num_draft_tokens + 1
    if steps > BOUND_BY_ARITHMETIC * width:
        where = " on this CPU" if server.about.get("device") == "cpu" else ""
        return text + (
            f" Drafting and checking {width} tokens at once costs {steps / width:.0%} of {width} single steps: it is "
            f"bound by arithmetic{where}, which checking many tokens at once does not save."
        )
    return text + f" Of at most {width} tokens a step too few are accepted to pay for it."


def _by_load(rows: Sequence[Row]) -> str:
    """The other loads, where output tokens a second are compared; in an open loop the arrivals set them."""
    if all(row.queue_s is not None for row in rows):
        return "In an open loop the arrivals set the throughput: compare TTFT and TPOT." if rows else ""
    told = [row for row in rows if row.throughput_ratio is not None and row.load != SINGLE]
    parts = [f"{row.throughput_ratio:.2f} times ({row.load})" for row in told]
    return f"Output tokens a second are {', '.join(parts)} the baseline's." if parts else ""
