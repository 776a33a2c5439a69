"""A benchmark as one HTML page that needs nothing else: what templates/bench.html.j2 is filled with."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from dflashctl.stages.bench.report import BenchReport, Quantiles, Row
from dflashctl.templating import render
from dflashctl.views.bench_cells import (
    COLUMNS,
    cells,
    figure,
    header,
    repetition,
)
from dflashctl.views.palette import duration, percent
from dflashctl.views.svg import Axis, Bar, Curve, plot


@dataclass(frozen=True)
class Tile:
    name: str
    value: str
    about: str
    mood: str = ""
    """good, bad or nothing."""


@dataclass(frozen=True)
class Picture:
    title: str
    about: str
    svg: str
    """Empty: `about` says why there is none."""


def html(report: BenchReport) -> str:
    return render(
        "bench.html.j2",
        title=f"{report.server}: speculative against plain decoding",
        report=report,
        when=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(report.started_at_s)),
        lasted=duration(report.ended_at_s - report.started_at_s),
        columns=COLUMNS,
        rows=[(row, cells(row, report)) for row in report.rows],
        tiles=_tiles(report),
        pictures=[_positions(report), _speedups(report), *_distributions(report)],
        header=header(report),
        repetition=repetition(report),
        prompts=[
            (
                one.prompt_id,
                one.category or "-",
                figure(None if one.tpot_baseline_s is None else 1000 * one.tpot_baseline_s, 1),
                figure(None if one.tpot_speculative_s is None else 1000 * one.tpot_speculative_s, 1),
                figure(one.speedup, 2),
                figure(one.tau, 2),
                f"{one.num_verify_steps:,}",
            )
            for one in report.prompts
        ],
        categories=[
            (one.category, str(one.num_prompts), figure(one.speedup, 2), figure(one.tau, 2))
            for one in report.categories
        ],
        differences=[] if report.equality is None else report.equality.differences[:20],
    )


def _tiles(report: BenchReport) -> list[Tile]:
    tiles = [_speedup_tile(report), _tau_tile(report)]
    server = report.servers["speculative"]
    rate = "not measured" if report.acceptance_rate is None else percent(report.acceptance_rate)
    tiles.append(
        Tile("drafts accepted", rate, f"accepted / drafted; K = {server.num_draft_tokens}, and it falls as K grows")
    )
    if report.equality is None:
        tiles.append(Tile("same output", "not compared", report.equality_note))
    else:
        equal = report.equality
        mood = "good" if equal.num_equal == equal.num_compared else "bad"
        about = f"greedy answers equal to the baseline's, by {equal.by}"
        tiles.append(Tile("same output", f"{equal.num_equal} of {equal.num_compared}", about, mood))
    return tiles


def _speedup_tile(report: BenchReport) -> Tile:
    if report.speedup is None:
        return Tile("speed-up", "not measured", "needs one request at a time (c=1)")
    interval = report.speedup_ci
    mood = "" if interval is None or interval.low <= 1 <= interval.high else "good" if interval.low > 1 else "bad"
    sure = "too few prompts for an interval" if interval is None else _between(interval.low, interval.high)
    about = f"decode rate, {report.num_paired_prompts} paired prompts; {sure}"
    return Tile("speed-up", f"{report.speedup:.2f}x", about, mood)


def _tau_tile(report: BenchReport) -> Tile:
    if report.tau is None:
        return Tile("tau", "not measured", "the engine counted no verify step")
    interval = report.tau_ci
    sure = "" if interval is None else f"; {_between(interval.low, interval.high)}"
    return Tile("tau", f"{report.tau:.2f}", f"tokens a target pass, {report.num_verify_steps:,} verify steps{sure}")


def _between(low: float, high: float) -> str:
    return f"95\u00a0%: {low:.2f}\u00a0to\u00a0{high:.2f}"


def _positions(report: BenchReport) -> Picture:
    title = "Acceptance by position"
    if not report.positions:
        return Picture(title, "Not measured: the engine counts no acceptance by position.", "")
    bars = [
        Bar(one.position, 100 * one.unconditional, f"position {one.position}: {percent(one.unconditional)}")
        for one in report.positions
    ]
    conditional = tuple(
        (float(one.position), 100 * one.conditional) for one in report.positions if one.conditional is not None
    )
    numbers = [float(one.position) for one in report.positions]
    about = (
        "Bars: of all verify steps, those that accepted every draft up to here. Line: of the steps that came this far, "
        "those that accepted this one too. A cliff to zero points at a windowed drafter run as full attention; a low "
        "first bar at wrong taps, another chat template or another target."
    )
    svg = plot(
        title,
        Axis(numbers[0] - 0.5, numbers[-1] + 0.5, "position of the draft"),
        Axis(0, 100, "accepted, %"),
        [Curve("conditional", "spec", conditional, has_dots=True)],
        bars,
        bar_name="unconditional",
        x_ticks=numbers,
    )
    return Picture(title, about, svg)


def _speedups(report: BenchReport) -> Picture:
    title = "Speed-up prompt by prompt"
    ratios = sorted(one.speedup for one in report.prompts if one.speedup is not None)
    if not ratios or report.speedup is None:
        return Picture(title, "Not measured: no prompt was decoded by both arms one at a time.", "")
    low, high = min(ratios[0], 1.0) * 0.95, max(ratios[-1], 1.0) * 1.05
    points = tuple((float(index), ratio) for index, ratio in enumerate(ratios, start=1))
    interval = report.speedup_ci
    about = "Plain TPOT / speculative TPOT of the same prompt, sorted. Above the dashed line speculation is faster."
    if interval is not None:
        about += " The band is the 95 % interval of the geometric mean."
    svg = plot(
        title,
        Axis(0, len(ratios) + 1, "prompts, by their speed-up"),
        Axis(low, high, "speed-up", is_log=True),
        [Curve("prompt", "spec", points, is_joined=False, has_dots=True)],
        level=1.0,
        band=None if interval is None else (interval.low, interval.high),
        x_ticks=(),
    )
    return Picture(title, about, svg)


def _distributions(report: BenchReport) -> list[Picture]:
    """Of the first load: the others are in the table."""
    if not report.rows:
        return []
    load = report.rows[0].load
    rows = [row for row in report.rows if row.load == load]
    return [
        _distribution(f"TTFT at {load}", "time to the first token, ms", [(row, row.ttft_s) for row in rows]),
        _distribution(f"TPOT at {load}", "time per output token, ms", [(row, row.tpot_s) for row in rows]),
    ]


def _distribution(title: str, label: str, arms: Sequence[tuple[Row, Quantiles | None]]) -> Picture:
    curves = []
    for row, values in arms:
        if values is not None:
            last = len(values.curve) - 1
            points = tuple((1000 * value, 100 * index / last) for index, value in enumerate(values.curve))
            curves.append(Curve(row.arm, "base" if row.arm == "baseline" else "spec", points))
    if not curves:
        return Picture(title, "Not measured.", "")
    highest = max(point[0] for curve in curves for point in curve.points)
    svg = plot(title, Axis(0, 1.05 * highest, label), Axis(0, 100, "requests at or below, %"), curves)
    return Picture(title, "Share of requests that took no longer. Left is faster.", svg)
