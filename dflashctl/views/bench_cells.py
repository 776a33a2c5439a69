"""The table as words: the same cells on a terminal, in Markdown and in HTML. What is not known is a dash."""

from dataclasses import dataclass

from dflashctl.stages.bench.figures import Interval
from dflashctl.stages.bench.report import BenchReport, Quantiles, Row

NONE = "-"


@dataclass(frozen=True)
class Column:
    title: str
    about: str
    """In one sentence; for whoever hovers over it."""


COLUMNS = (
    Column("load", "c=N: N requests at any time; rate: requests arrive at random times"),
    Column("arm", ""),
    Column("x plain", "One at a time: geometric mean of per-prompt TPOT ratios; else ratio of output tokens a second"),
    Column("tau", "1 + accepted drafts / verify steps, from the engine's counters, bonus included"),
    Column("accepted", "Accepted / drafted tokens; compares only the same K"),
    Column("out tok/s", "All output tokens / wall time of the arm's turns, ramp and tail included"),
    Column("tok/s/user", "1 / median TPOT"),
    Column("TTFT ms p50/p99", "To the first token; from sending, open loop: from the intended arrival"),
    Column("TPOT ms p50/p99", "(last chunk - first chunk) / (tokens - tokens of the first chunk)"),
    Column("chunk gap ms p50/p99", "Between two chunks, whatever they hold"),
    Column("E2E ms p50/p99", "To the last token"),
)


def cells(row: Row, report: BenchReport) -> tuple[str, ...]:
    """One for each of COLUMNS."""
    return (
        row.load,
        row.arm,
        against_plain(row, report),
        with_interval(row.tau, row.tau_ci, 2),
        NONE if row.acceptance_rate is None else f"{100 * row.acceptance_rate:.0f} %",
        with_interval(row.output_tokens_per_s, row.output_tokens_per_s_ci, 1),
        figure(row.tokens_per_s_per_user, 1),
        milliseconds(row.ttft_s),
        milliseconds(row.tpot_s),
        milliseconds(row.chunk_gap_s),
        milliseconds(row.e2e_s),
    )


def against_plain(row: Row, report: BenchReport) -> str:
    """The speed-up of a row: paired at one request at a time, a ratio of throughputs elsewhere."""
    if row.arm == "baseline":
        return NONE
    if row.load == "c=1" and report.speedup is not None:
        return with_interval(report.speedup, report.speedup_ci, 2)
    return with_interval(row.throughput_ratio, row.throughput_ratio_ci, 2)


def figure(value: float | None, digits: int) -> str:
    return NONE if value is None else f"{value:,.{digits}f}"


def with_interval(value: float | None, interval: Interval | None, digits: int) -> str:
    """12.3 [11.9, 12.8]"""
    if value is None or interval is None:
        return figure(value, digits)
    return f"{figure(value, digits)} [{figure(interval.low, digits)}, {figure(interval.high, digits)}]"


def milliseconds(values: Quantiles | None) -> str:
    if values is None:
        return NONE
    digits = 1 if values.p50 < 0.1 else 0
    return f"{1000 * values.p50:,.{digits}f} / {1000 * values.p99:,.{digits}f}"


def drafter(report: BenchReport) -> str:
    """RUN@STEP (sha256 ...), K."""
    server = report.servers["speculative"]
    sha = f" (sha256 {server.drafter_sha256[:12]})" if server.drafter_sha256 else ""
    return f"{server.drafter_label}{sha}, K = {server.num_draft_tokens} drafts a step"


def prompts(report: BenchReport) -> str:
    """How many were measured; of how many, where it was broken off."""
    if report.num_prompts == report.asked.num_prompts:
        return f"{report.num_prompts} prompts"
    return f"{report.num_prompts} of {report.asked.num_prompts} prompts"


def header(report: BenchReport) -> tuple[tuple[str, str], ...]:
    """What makes the run repeatable: (name, value)."""
    asked = report.asked
    about = report.servers["speculative"].about
    versions = ", ".join(
        f"{key} {about[key]}" for key in ("version", "torch", "transformers", "device", "dtype") if about.get(key)
    )
    base = report.servers["baseline"]
    sampling = "greedy" if asked.temperature == 0 else f"temperature {asked.temperature:g}"
    more = f", top_p {asked.top_p:g}, top_k {asked.top_k or 'all'}, seed {asked.seed}"
    template = f", chat template {asked.chat_template_kwargs}" if asked.chat_template_kwargs else ""
    return (
        ("server", f"{report.server}, engine {report.engine}{f' ({versions})' if versions else ''}"),
        ("baseline", f"{base.name}, {'started for the time' if base.is_temporary else 'a server of its own'}"),
        ("target", report.servers["speculative"].target),
        ("drafter", drafter(report)),
        ("prompts", f"{asked.num_prompts} of {asked.prompts} (sha256 {asked.prompts_sha256[:12]})"),
        ("sampling", f"{sampling}{more}{template}, up to {asked.max_new_tokens} tokens"),
        (
            "repeats",
            f"{asked.num_repeats}, the arms in turns; warm-up an arm, not counted: {asked.num_warmup}",
        ),
        ("client", f"dflashctl {report.dflashctl} on {report.machine}"),
    )


def repetition(report: BenchReport) -> str:
    if report.repetition is None:
        return "repeated text: not measured, the server gives no token ids"
    text = (
        f"{100 * report.repetition.repeated_token_share:.1f} % of the tokens lie in a repeated 16-gram of their answer"
    )
    without = report.repetition.tau_without_repeats
    if without is None:
        return f"{text}; tau without them cannot be told, which needs c=1 and a chunk a verify step"
    return f"{text}; tau of the steps without them {without:.2f}"
