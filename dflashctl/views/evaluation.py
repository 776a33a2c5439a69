"""Measured acceptance: one report, before and after, or two side by side. An estimate never appears here."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dflashctl.stages.evaluate.plan import Comparison
from dflashctl.views.palette import BAD, CAUTION, GOOD, HEADLINE, QUIET, percent
from dflashctl_remote.spec.evaluate import EvalReport, Tau
from dflashctl_remote.spec.parity import Parity


def acceptance(reports: Sequence[tuple[str, EvalReport]]) -> RenderableType:
    """One row for each named report's drafter, the last one's look-ups below it; the headline is in bold.

    tau counts tokens per target pass, bonus included.
    """
    table = Table(box=None, header_style=QUIET, padding=(0, 1))
    table.add_column("drafts from", no_wrap=True)
    for column in ("tau", "tau without\nrepeats", "verify\nsteps", "tokens"):
        table.add_column(column, justify="right")
    for name, report in reports:
        style = HEADLINE if report is reports[-1][1] else ""
        _row(table, name, report.drafter, report.drafter_without_repeats, style)
    last = reports[-1][1]
    _row(table, "look-up: last bigram in the own text", last.bigram_lookup)
    if last.bigram_table is not None:
        _row(table, "look-up: bigrams of the training text", last.bigram_table)
    return Group(_title(last), table, _remarks(last))


def comparison(result: Comparison) -> RenderableType:
    table = Table(box=None, header_style=QUIET, padding=(0, 2))
    table.add_column("")
    for column in ("A", "B", "change"):
        table.add_column(column, justify="right")
    for delta in result.deltas:
        is_headline = delta is result.headline
        style = ""
        if is_headline:
            style = GOOD if delta.change >= 0 else BAD
        table.add_row(
            Text(delta.name, style="bold" if is_headline else ""),
            f"{delta.before:.3f}",
            f"{delta.after:.3f}",
            Text(f"{delta.change:+.1%}", style=style),
        )
    names = Text(f"A {result.before.checkpoint}\nB {result.after.checkpoint}", style=QUIET)
    caveats = [Text(f"not the same measurement: {caveat}", style=CAUTION) for caveat in result.caveats]
    return Group(names, table, *caveats)


def acceptance_by_slot(report: EvalReport) -> RenderableType:
    """Share of verify steps whose first k drafts were all accepted."""
    grid = Table(box=None, header_style=QUIET, padding=(0, 1))
    grid.add_column("slot")
    for slot in range(1, len(report.acceptance_by_slot) + 1):
        grid.add_column(str(slot), justify="right")
    grid.add_row("accepted up to", *(f"{100 * share:.0f} %" for share in report.acceptance_by_slot))
    return grid


def _title(report: EvalReport) -> Text:
    return Text.assemble(
        ("measured", GOOD),
        f", {report.method} decode of {report.num_prompts} prompts, "
        f"block {report.block_size}, {_taps(report)}{report.dtype} on {report.device}",
    )


def _taps(report: EvalReport) -> str:
    """Nothing of reports that did not tell yet."""
    if not report.taps:
        return ""
    num = len(report.taps)
    return f"{num} tap{'' if num == 1 else 's'}: {', '.join(map(str, report.taps))}; "


def _row(table: Table, name: str, tau: Tau, without_repeats: Tau | None = None, style: str = "") -> None:
    table.add_row(
        name,
        _figure(tau),
        Text(_figure(without_repeats) if without_repeats else "-", style=style),
        f"{tau.num_verify_steps:,}",
        f"{tau.num_tokens:,}",
    )


def _figure(tau: Tau) -> str:
    """Without a step there was nothing to measure."""
    return f"{tau.tau:.2f}" if tau.num_verify_steps else "none left"


def _remarks(report: EvalReport) -> RenderableType:
    is_equal = report.num_greedy_equal == report.num_greedy_checked
    greedy = (
        f"{report.num_greedy_equal} of {report.num_greedy_checked} answers decoded plainly as well are "
        f"{'' if is_equal else 'NOT all '}the same token for token"
    )
    return Group(
        Text(
            f"{percent(report.repeated_token_share)} of the tokens lie in a repeated 16-gram of their answer; "
            f"{percent(report.distinct_4gram_share)} of the 4-grams differ; "
            f"{report.mean_answer_tokens:.0f} tokens an answer",
            style=QUIET,
        ),
        Text(greedy, style=QUIET if is_equal else BAD),
        *([parity_line(report.parity)] if report.parity is not None else []),
        *_weaker_than_a_table(report),
    )


def parity_line(parity: Parity) -> Text:
    """Whether drafting does what training scored; where not, the likely cause."""
    counts = (
        f"{parity.num_slots_equal:,} of {parity.num_slots:,} drafts and {parity.num_labels_equal:,} of "
        f"{parity.num_labels:,} labels agree"
    )
    match parity.verdict:
        case "agree":
            return Text(f"parity of training and drafting: {counts}", style=QUIET)
        case "not checked":
            return Text(f"parity of training and drafting was not checked: {parity.says}", style=CAUTION)
        case "trained otherwise":
            return Text(f"parity: {counts}, but probably trained otherwise ({parity.cause}): {parity.says}", style=BAD)
        case "differ":
            return Text(f"parity FAILED, likely cause: {parity.cause}: {parity.says} ({counts})", style=BAD)


def _weaker_than_a_table(report: EvalReport) -> list[Text]:
    table = report.bigram_table
    if table is None or not table.num_verify_steps or report.drafter.tau >= table.tau:
        return []
    return [Text("a table of the training text's bigrams still drafts better than this drafter", style=CAUTION)]
