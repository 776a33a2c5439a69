"""What is trained on and what is not, readable with and without colour."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dflashctl.views.palette import ACCENT, QUIET, percent
from dflashctl_remote.spec.data import InspectDocument, InspectReport, MaskSpan

SUPERVISED = "green"
ANCHOR = "green underline"
CONTEXT = "bright_black"
OPEN, CLOSE = "[", "]"


def inspection(report: InspectReport) -> RenderableType:
    parts: list[RenderableType] = [_summary(report), Text(), legend()]
    for document in report.documents:
        parts += [Text(), document_mask(document)]
    return Group(*parts)


def legend() -> Text:
    return Text.assemble(
        (OPEN, ACCENT),
        ("trained on, a block may start here", ANCHOR),
        (CLOSE, ACCENT),
        "  ",
        (OPEN, ACCENT),
        ("trained on", SUPERVISED),
        (CLOSE, ACCENT),
        "  ",
        ("context only, never a label", CONTEXT),
    )


def document_mask(document: InspectDocument) -> RenderableType:
    category = f", {document.category}" if document.category else ""
    head = Text(
        f"document {document.index} ({document.id}{category}): {document.num_tokens:,} tokens, "
        f"{document.num_supervised_tokens:,} trained on, {document.num_anchor_candidates:,} possible anchors",
        style=ACCENT,
    )
    return Group(head, masked_text(document.spans))


def masked_text(spans: tuple[MaskSpan, ...]) -> Text:
    """The document's text; each run of supervised tokens stands in brackets."""
    text = Text()
    was_supervised = False
    for span in spans:
        if span.is_supervised != was_supervised:
            text.append(OPEN if span.is_supervised else CLOSE, style=ACCENT)
            was_supervised = span.is_supervised
        style = ANCHOR if span.is_anchor_candidate else SUPERVISED if span.is_supervised else CONTEXT
        text.append(span.text, style=style)
    if was_supervised:
        text.append(CLOSE, style=ACCENT)
    return text


def _summary(report: InspectReport) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style=QUIET, justify="right")
    grid.add_column()
    info = report.info
    grid.add_row("dataset", Text(report.dataset))
    grid.add_row("documents", f"{info.num_documents:,}, {info.num_tokens:,} tokens")
    grid.add_row("trained on", f"{info.num_supervised_tokens:,} tokens ({percent(report.supervised_share)})")
    grid.add_row(
        "lengths",
        f"median {report.length_p50_tokens:,}, P90 {report.length_p90_tokens:,}, "
        f"longest {report.length_max_tokens:,} tokens",
    )
    categories = ", ".join(f"{name or 'no category'} {count:,}" for name, count in report.categories.items())
    grid.add_row("categories", categories or "-")
    if report.packing is not None:
        packing = report.packing
        grid.add_row(
            "packing",
            f"{packing.num_rows:,} rows of {packing.tokens_per_batch:,}: {percent(packing.fill_share)} filled; "
            f"{percent(packing.padded_waste_share)} of the target's padded batches is padding",
        )
    return grid
