"""A benchmark on a terminal: what would be asked, what came out, and two of them side by side."""

from collections.abc import Iterable, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from dflashctl.stages.bench.compare import BenchComparison, Change
from dflashctl.stages.bench.plan import BenchPlan
from dflashctl.stages.bench.report import BenchReport, Check
from dflashctl.stages.deploy.plan import DeployPlan
from dflashctl.views.bench_cells import COLUMNS, cells, drafter, prompts, repetition
from dflashctl.views.deploy import deploy_plan
from dflashctl.views.palette import BAD, CAUTION, GOOD, HEADLINE, QUIET, percent

WIDE = 112
"""Columns that the whole table takes."""
NAMES = ("load", "arm")
OUTCOME_STYLE = {"better": GOOD, "worse": BAD, "no difference": "", "not judged": QUIET}
CHECK_STYLE = {"ok": QUIET, "warning": CAUTION, "not measured": QUIET}


def dry_run(plan: BenchPlan, launch: DeployPlan | None) -> RenderableType:
    """Who would be asked what, the start of a baseline included."""
    spec, asked = plan.spec, plan.asked
    grid = _pairs()
    for arm, server in plan.servers.items():
        address = server.base_url or "a free port, started for the time and ended again"
        grid.add_row(arm, Text(f"{server.name} ({server.engine}), {address}"))
    loads = (
        "open loop, " + f"{spec.rate_per_s:g} requests/s" if spec.rate_per_s else f"{_listed(spec.concurrency)} at once"
    )
    grid.add_row("prompts", Text(f"{asked.num_prompts} of {asked.prompts}, sha256 {asked.prompts_sha256[:12]}"))
    grid.add_row("load", f"{loads}; {spec.num_repeats} repeats; {spec.num_warmup} warm-up requests an arm first")
    grid.add_row("requests", f"{plan.num_requests:,} in {len(plan.turns):,} turns, A B B A")
    if plan.num_skipped:
        grid.add_row("resumed", f"{plan.num_skipped:,} are answered already")
    grid.add_row("sampling", f"temperature {spec.temperature:g}, up to {spec.max_new_tokens} tokens, seed {spec.seed}")
    grid.add_row("writes", Text(str(plan.folder)))
    grid.add_row("", "requests.jsonl, run.json, report.html, table.md")
    parts: list[RenderableType] = [Text("would ask, nothing was asked", style=CAUTION), grid]
    if launch is not None:
        parts.append(deploy_plan(launch))
    return Group(*parts)


def outcome(report: BenchReport) -> RenderableType:
    """The end of `bench`: table, verdict, what to mind, where it lies."""
    return Group(
        _title(report),
        _Arms(report),
        _verdict(report),
        *_remarks(report),
        Text(f"report {report.folder}/report.html"),
    )


def comparison(result: BenchComparison) -> RenderableType:
    table = Table(box=None, header_style=QUIET, padding=(0, 2))
    table.add_column("")
    for column in ("A", "B", "B - A, 95 %"):
        table.add_column(column, justify="right")
    table.add_column("")
    for change in result.changes:
        style = OUTCOME_STYLE[change.outcome]
        said = f"{change.outcome}: {change.note}" if change.note else change.outcome
        table.add_row(change.name, _figure(change.before), _figure(change.after), _interval(change), Text(said, style))
    names = Text(f"A {result.before.folder}\nB {result.after.folder}", style=QUIET)
    caveats = [Text(f"not the same measurement: {caveat}", style=CAUTION) for caveat in result.caveats]
    return Group(names, table, *caveats)


def _title(report: BenchReport) -> Text:
    return Text.assemble(
        ("measured", GOOD),
        f", {prompts(report)} on {report.engine}, drafter {drafter(report)}",
    )


class _Arms:
    """The table of rows; two of them, one below the other, where a terminal is too narrow for one."""

    def __init__(self, report: BenchReport) -> None:
        self._report = report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        titles = [column.title for column in COLUMNS]
        if options.max_width >= WIDE:
            yield self._table(titles)
            return
        first_time = next(index for index, title in enumerate(titles) if "p50" in title)
        yield self._table(titles[:first_time])
        yield self._table([*NAMES, *titles[first_time:]])

    def _table(self, titles: Sequence[str]) -> Table:
        """An interval stands below its figure, and p99 below p50."""
        table = Table(box=None, header_style=QUIET, padding=(0, 1, 0, 0))
        for title in titles:
            stacked = title.replace(" p50/p99", "\np50\np99")
            table.add_column(stacked, justify="left" if title in NAMES else "right", no_wrap=True)
        for row in self._report.rows:
            by_title = {column.title: cell for column, cell in zip(COLUMNS, cells(row, self._report), strict=True)}
            shown = (by_title[title].replace(" [", "\n[").replace(" / ", "\n") for title in titles)
            table.add_row(*shown, style=HEADLINE if row.arm == "speculative" else "")
        return table


def _verdict(report: BenchReport) -> Text:
    interval = report.speedup_ci
    style = ""
    if interval is not None and interval.high < 1:
        style = CAUTION
    elif interval is not None and interval.low > 1:
        style = GOOD
    return Text(report.verdict, style=style)


def _remarks(report: BenchReport) -> Iterable[RenderableType]:
    is_equal = report.is_lossless is not False
    yield Text(report.equality_note, style=QUIET if is_equal else CAUTION)
    yield Text(repetition(report), style=QUIET)
    if report.positions:
        shares = "  ".join(f"{one.position}: {percent(one.unconditional)}" for one in report.positions)
        yield Text(f"accepted up to position  {shares}", style=QUIET)
    for check in report.checks:
        if check.verdict == "warning":
            yield _check(check)
    for reason in report.invalid_because:
        yield Text(f"INVALID: {reason}", style=BAD)


def _check(check: Check) -> Text:
    return Text(f"{check.verdict}: {check.name}: {check.text}", style=CHECK_STYLE[check.verdict])


def _interval(change: Change) -> str:
    return "-" if change.interval is None else f"[{change.interval.low:+.3f}, {change.interval.high:+.3f}]"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _pairs() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style=QUIET, justify="right")
    grid.add_column(overflow="fold")
    return grid
