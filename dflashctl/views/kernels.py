"""Kernels: what of them was checked, and how fast they are beside other ways to do the same."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dflashctl.views.palette import BAD, CAUTION, GOOD, HEADLINE, QUIET, binary
from dflashctl_remote.spec.kernels import Arm, Bar, Bench, Check, KernelsReport

_STYLES = {"passed": GOOD, "failed": BAD, "skipped": CAUTION}


def kernels_report(report: KernelsReport) -> RenderableType:
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    return Group(
        Text(f"{report.device}: {versions}", style=QUIET),
        _checks(report.checks),
        Text(_count(report)),
        *(_bench(bench) for bench in report.benches),
    )


def _checks(checks: tuple[Check, ...]) -> Table:
    table = Table(box=None, header_style=QUIET, padding=(0, 1))
    for column in ("kernel", "claim", "", ""):
        table.add_column(column, overflow="fold")
    for check in checks:
        table.add_row(
            Text(check.kernel), Text(check.claim), Text(check.state, style=_STYLES[check.state]), Text(check.detail)
        )
    return table


def _count(report: KernelsReport) -> str:
    counts = {state: sum(check.state == state for check in report.checks) for state in _STYLES}
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count)


def _bench(bench: Bench) -> RenderableType:
    table = Table(box=None, header_style=QUIET, padding=(0, 1))
    table.add_column("")
    for column in ("ms", "quartiles", "runs", "x floor", "extra memory"):
        table.add_column(column, justify="right")
    table.add_column("")
    for arm in bench.arms:
        table.add_row(*_cells(arm, bench.floor_ms))
    return Group(Text(f"\n{bench.kernel}: {bench.shape}"), table, *(_bar(bar) for bar in bench.bars))


def _cells(arm: Arm, floor_ms: float | None) -> tuple[Text | str, ...]:
    name = Text(arm.name, style=HEADLINE if arm.role == "ours" else "")
    detail = Text(arm.detail, style=QUIET)
    if arm.median_ms is None or arm.low_ms is None or arm.high_ms is None:
        return (name, "-", "-", "-", "-", "-", detail)
    return (
        name,
        f"{arm.median_ms:.2f}",
        f"{arm.low_ms:.2f} to {arm.high_ms:.2f}",
        str(arm.num_runs),
        f"{arm.median_ms / floor_ms:.3f}" if floor_ms else "-",
        "-" if arm.extra_bytes is None else binary(arm.extra_bytes),
        detail,
    )


def _bar(bar: Bar) -> Text:
    word, style = ("reached", GOOD) if bar.is_met else ("missed", BAD)
    unit = f" {bar.unit}" if bar.unit else ""
    return Text.assemble((word, style), f": {bar.what} {bar.found:.3f}{unit}, at most {bar.limit:g}{unit} was wanted")
