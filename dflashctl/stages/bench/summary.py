"""From what was written down to run.json: the same lines always give the same report."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from dflashctl.errors import ArtifactError
from dflashctl.stages.bench import figures
from dflashctl.stages.bench.account import ARMS, Asked, Line
from dflashctl.stages.bench.checks import checks, invalid_because
from dflashctl.stages.bench.evidence import Evidence
from dflashctl.stages.bench.figures import Interval
from dflashctl.stages.bench.pairs import (
    category_figures,
    equality,
    prompt_figures,
    repetition,
    step_cost,
)
from dflashctl.stages.bench.plan import Load
from dflashctl.stages.bench.report import BenchReport, Equality, Position, PromptFigures
from dflashctl.stages.bench.rows import rows
from dflashctl.stages.bench.verdict import verdict

REPORT_NAME = "run.json"
SOURCES = (
    "times: this client's monotonic clock, one reading a chunk; the wall clock was read once a start",
    "tokens: the servers' usage; sizes of chunks from token ids, else from continuous usage",
    "tau, acceptance: the engine's counters, differenced over every turn of an arm; bonus included",
    "TPOT: (last chunk - first chunk) / (tokens - tokens of the first chunk) a request, then quantiles over requests",
    "TTFT: from sending in a closed loop, from the intended arrival in an open one; reasoning counts as tokens",
    "speed-up: geometric mean of the per-prompt ratios of TPOT, one request at a time",
    f"intervals: 95 %, bootstrap over prompts (over turns above c=1), {figures.NUM_RESAMPLES} seeded resamples",
)


def summarise(lines: Sequence[Line], folder: Path, category_of: Mapping[str, str | None]) -> BenchReport:
    """`lines` hold at least one segment."""
    evidence = Evidence(lines)
    first, last = evidence.segments[0], evidence.segments[-1]
    asked, servers = last.asked, last.servers
    table = rows(evidence, _loads(asked), asked.seed)
    prompts = prompt_figures(evidence, category_of)
    equal = equality(evidence)
    seen = figures.pooled(evidence.counters("speculative"))
    speedup, speedup_ci = _speedup(prompts, asked.seed)
    cost = step_cost(evidence)
    dtypes = [servers[arm].about.get("dtype") for arm in ARMS]
    is_greedy = asked.temperature == 0
    end = evidence.ends[-1] if evidence.ends and evidence.ends[-1].segment == last.segment else None
    stopped = None if _is_complete(evidence, asked) else (end and end.reason) or "it was killed"
    reasons = [
        *([f"it ended before everything was asked: {stopped}"] if stopped else []),
        *invalid_because(evidence, table, equal, is_greedy=is_greedy, dtypes=dtypes),
    ]
    return BenchReport(
        server=servers["speculative"].name,
        engine=servers["speculative"].engine,
        drafter_label=servers["speculative"].drafter_label,
        started_at_s=first.began_at_s,
        ended_at_s=last.began_at_s + (end.ended_s if end else 0.0),
        num_prompts=_num_answered(evidence),
        tau=seen.tau,
        num_verify_steps=seen.num_drafts,
        speedup=speedup,
        is_lossless=equal.num_equal == equal.num_compared if equal and is_greedy else None,
        is_valid=not reasons,
        folder=str(folder),
        machine=last.machine,
        dflashctl=last.dflashctl,
        num_segments=len(evidence.segments),
        asked=asked,
        servers=servers,
        extras=last.extras,
        dtype=dtypes[1],
        tau_ci=figures.bootstrap(evidence.counters("speculative"), figures.pooled_tau, seed=asked.seed),
        speedup_ci=speedup_ci,
        acceptance_rate=seen.acceptance_rate,
        num_paired_prompts=sum(prompt.speedup is not None for prompt in prompts),
        rows=table,
        prompts=prompts,
        categories=category_figures(prompts, evidence),
        positions=tuple(
            Position(position=index, unconditional=shares[0], conditional=shares[1])
            for index, shares in enumerate(figures.acceptance_by_position(seen), start=1)
        ),
        equality=equal if is_greedy else None,
        equality_note=_equality_note(equal, is_greedy, dtypes),
        repetition=repetition(evidence),
        step_cost=cost,
        verdict=verdict(
            speedup, speedup_ci, seen.tau, cost, servers["speculative"], table, has_single=1 in asked.concurrency
        ),
        checks=checks(evidence, table, equal if is_greedy else None),
        invalid_because=tuple(reasons),
        ended_because=stopped,
        sources=SOURCES,
    )


def _num_answered(evidence: Evidence) -> int:
    """Prompts that both arms answered at least once, without error."""
    by_arm = [{one.prompt_id for one in evidence.requests if one.arm == arm and one.error is None} for arm in ARMS]
    return len(set.intersection(*by_arm))


def read_report(path: Path) -> BenchReport:
    """From a benchmark's folder, or its run.json. Raises ArtifactError."""
    file = path / REPORT_NAME if path.is_dir() else path
    try:
        return BenchReport.model_validate_json(file.read_bytes())
    except OSError as error:
        raise ArtifactError(
            f"no benchmark at {path}: {error.strerror}", hint="dflashctl bench --server NAME"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ArtifactError(f"{file} is not a benchmark's report of this version: {place}: {first['msg']}") from error


def _is_complete(evidence: Evidence, asked: Asked) -> bool:
    """Whether everything was asked, answered or not, however the last start ended."""
    return len(evidence.requests) == len(ARMS) * len(_loads(asked)) * asked.num_repeats * asked.num_prompts


def _speedup(prompts: Sequence[PromptFigures], seed: int) -> tuple[float | None, Interval | None]:
    ratios = [prompt.speedup for prompt in prompts if prompt.speedup is not None]
    if not ratios:
        return None, None
    return figures.geometric_mean(ratios), figures.bootstrap(ratios, figures.geometric_mean, seed=seed)


def _loads(asked: Asked) -> tuple[Load, ...]:
    if asked.rate_per_s is not None:
        return (Load(None, asked.rate_per_s),)
    return tuple(Load(number, None) for number in asked.concurrency)


def _equality_note(equal: Equality | None, is_greedy: bool, dtypes: Sequence[str | None]) -> str:
    if not is_greedy:
        return "not compared: at a temperature above 0 two right servers draw different texts"
    if equal is None:
        return "not compared: no prompt was answered by both arms"
    text = f"{equal.num_equal} of {equal.num_compared} greedy outputs are the baseline's, by {equal.by}"
    if equal.num_equal == equal.num_compared:
        return text
    first = min(equal.differences, key=lambda one: one.index)
    unit = "token" if equal.by == "token ids" else "character"
    text += f"; the earliest difference is at {unit} {first.index} of {first.prompt_id}"
    if any(dtype != "float32" for dtype in dtypes):
        known = " and ".join(sorted({dtype or "a dtype that the server does not say" for dtype in dtypes}))
        text += f"; in {known} rounding alone can part near-ties, so that this fails nothing by itself"
    return text
