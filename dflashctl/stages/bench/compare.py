"""Two benchmarks side by side, and whether the second is worse by more than chance allows. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dflashctl.stages.bench import figures
from dflashctl.stages.bench.figures import Interval
from dflashctl.stages.bench.report import BenchReport, Row

Outcome = Literal["better", "worse", "no difference", "not judged"]


@dataclass(frozen=True)
class Change:
    """One figure in both; higher is better in all of them."""

    name: str
    before: float | None
    after: float | None
    interval: Interval | None
    """Of after - before, 95 %; None: one of the two has none."""
    outcome: Outcome
    note: str = ""


@dataclass(frozen=True)
class BenchComparison:
    before: BenchReport
    after: BenchReport
    changes: tuple[Change, ...]
    caveats: tuple[str, ...]
    """Why the two may not be comparable."""
    regressions: tuple[str, ...]
    """Empty: nothing is worse beyond chance."""


def compare(before: BenchReport, after: BenchReport) -> BenchComparison:
    """Tau and ratios to the own baseline are judged; bare speeds are shown, since they move with the machine's load."""
    changes = (
        _judged("speed-up", (before.speedup, before.speedup_ci), (after.speedup, after.speedup_ci)),
        _judged("tau", (before.tau, before.tau_ci), (after.tau, after.tau_ci)),
        *_by_load(before, after),
    )
    worse = [
        f"{change.name} fell from {change.before:.2f} to {change.after:.2f}"
        for change in changes
        if change.outcome == "worse"
    ]
    if before.is_lossless and after.is_lossless is False:
        worse.append("outputs were the baseline's and are not any more")
    return BenchComparison(before, after, changes, tuple(_caveats(before, after)), tuple(worse))


def _by_load(before: BenchReport, after: BenchReport) -> Iterator[Change]:
    ours = {row.load: row for row in before.rows if row.arm == "speculative"}
    theirs = {row.load: row for row in after.rows if row.arm == "speculative"}
    for load, row in ours.items():
        other = theirs.get(load)
        if other is None:
            continue
        yield _judged(f"throughput ratio, {load}", _ratio(row), _ratio(other))
        yield Change(
            f"output tok/s, {load}",
            row.output_tokens_per_s,
            other.output_tokens_per_s,
            None,
            "not judged",
            "moves with the machine's load",
        )


def _ratio(row: Row) -> tuple[float | None, Interval | None]:
    return row.throughput_ratio, row.throughput_ratio_ci


def _judged(
    name: str, before: tuple[float | None, Interval | None], after: tuple[float | None, Interval | None]
) -> Change:
    if before[0] is None or after[0] is None:
        return Change(name, before[0], after[0], None, "not judged", "not measured in both")
    if before[1] is None or after[1] is None:
        return Change(name, before[0], after[0], None, "not judged", "too few prompts for an interval")
    interval = figures.difference(before[0], before[1], after[0], after[1])
    outcome: Outcome = "worse" if interval.high < 0 else "better" if interval.low > 0 else "no difference"
    return Change(name, before[0], after[0], interval, outcome)


def _caveats(before: BenchReport, after: BenchReport) -> Iterator[str]:
    pairs: list[tuple[str, object, object]] = [
        (name, getattr(before.asked, name), getattr(after.asked, name))
        for name in type(before.asked).model_fields
        if name != "prompts"
    ]
    pairs += [(name, getattr(before, name), getattr(after, name)) for name in ("engine", "machine", "dtype")]
    ours, theirs = before.servers["speculative"], after.servers["speculative"]
    pairs += [(name, getattr(ours, name), getattr(theirs, name)) for name in ("target", "num_draft_tokens")]
    pairs.append(("device", ours.about.get("device"), theirs.about.get("device")))
    for name, one, other in pairs:
        if one != other:
            yield f"{name} differs: {one} and {other}"
    if not before.is_valid:
        yield f"A is invalid itself: {before.invalid_because[0]}"
