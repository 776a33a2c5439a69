"""A benchmark as Markdown, to paste where people discuss it."""

from collections.abc import Iterator, Sequence

from dflashctl.stages.bench.report import BenchReport
from dflashctl.views.bench_cells import COLUMNS, cells, figure, header, repetition
from dflashctl.views.palette import percent


def markdown(report: BenchReport) -> str:
    return "\n".join(_lines(report)) + "\n"


def _lines(report: BenchReport) -> Iterator[str]:
    yield from (f"**INVALID**: {reason}\n" for reason in report.invalid_because)
    yield from _table([column.title for column in COLUMNS], [cells(row, report) for row in report.rows])
    yield f"\n{report.verdict}\n"
    yield f"- {report.equality_note}"
    yield f"- {repetition(report)}"
    if report.positions:
        shares = ", ".join(f"{one.position}: {percent(one.unconditional)}" for one in report.positions)
        yield f"- accepted up to position {shares}"
    yield from (f"- {check.verdict}: {check.name}: {check.text}" for check in report.checks if check.verdict != "ok")
    yield ""
    yield from (f"- {name}: {value}" for name, value in header(report))
    if report.categories:
        yield ""
        rows = [
            (one.category, str(one.num_prompts), figure(one.speedup, 2), figure(one.tau, 2))
            for one in report.categories
        ]
        yield from _table(("category", "prompts", "speed-up", "tau"), rows)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield _row(titles)
    yield _row(["---"] * len(titles))
    yield from (_row(row) for row in rows)


def _row(values: Sequence[str]) -> str:
    return f"| {' | '.join(value.replace('|', '/') for value in values)} |"
