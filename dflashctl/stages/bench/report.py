"""The shape of run.json: what was measured, how sure it is, and whether it may be believed."""

from typing import Literal

from pydantic import Field

from dflashctl.records import BenchRecord
from dflashctl.stages.bench.account import Arm, Asked, Extras, ServerLabel
from dflashctl.stages.bench.figures import Interval
from dflashctl_remote.spec.base import Spec

Verdict = Literal["ok", "warning", "not measured"]


class Quantiles(Spec):
    """Over requests; of chunk gaps, over all gaps."""

    p50: float
    p90: float
    p99: float
    num_values: int
    curve: tuple[float, ...]
    """At 0, 5, .. 100 %: the whole distribution, to be drawn."""


class Row(Spec):
    """One arm under one load."""

    load: str
    arm: Arm
    num_requests: int
    num_errors: int
    num_output_tokens: int
    wall_s: float
    """Of the turns that came to their end; ramp and tail are in it."""
    output_tokens_per_s: float | None
    output_tokens_per_s_ci: Interval | None
    tokens_per_s_per_user: float | None
    """1 / median TPOT."""
    ttft_s: Quantiles | None
    tpot_s: Quantiles | None
    chunk_gap_s: Quantiles | None
    e2e_s: Quantiles | None
    queue_s: Quantiles | None
    """Open loop: from the intended arrival to sending."""
    tau: float | None
    tau_ci: Interval | None
    acceptance_rate: float | None
    num_verify_steps: int
    throughput_ratio: float | None
    """Speculative row: its output tokens a second / the baseline's. In an open loop the arrivals set them: None."""
    throughput_ratio_ci: Interval | None


class PromptFigures(Spec):
    """One prompt at one request at a time, over all repeats."""

    prompt_id: str
    category: str | None
    tpot_baseline_s: float | None
    tpot_speculative_s: float | None
    speedup: float | None
    """Geometric mean over repeats of baseline TPOT / speculative TPOT."""
    tau: float | None
    num_verify_steps: int


class CategoryFigures(Spec):
    category: str
    num_prompts: int
    speedup: float | None
    tau: float | None


class Position(Spec):
    """Acceptance of the draft at one position, the first being 1."""

    position: int
    unconditional: float
    """Of all verify steps."""
    conditional: float | None
    """Of the steps that accepted everything before; None: there was none."""


class Difference(Spec):
    load: str
    repeat: int
    prompt_id: str
    index: int
    """Of the first token, or character, that differs."""


class Equality(Spec):
    """Outputs of the two arms on the same prompts, which greedy decoding should give equal."""

    by: Literal["token ids", "text"]
    num_compared: int
    num_equal: int
    differences: tuple[Difference, ...]
    num_baseline_compared: int
    """The baseline's repeats against its first: the noise floor. 0: there was one repeat only."""
    num_baseline_equal: int


class Repetition(Spec):
    """Loops are drafted for free and pass for skill."""

    repeated_token_share: float
    """Speculative arm's tokens inside a 16-gram that occurs more than once in their answer."""
    tau_without_repeats: float | None
    """Of the steps that gave no such token; None: chunks are not steps here, so that it cannot be told."""


class StepCost(Spec):
    """At one request at a time: seconds of decode / steps on the one arm, / tokens on the other."""

    verify_step_s: float
    """One draft-and-verify step."""
    plain_step_s: float
    plain_steps_per_verify_step: float
    """Speculation gains only where tau is above this."""


class Check(Spec):
    name: str
    verdict: Verdict
    text: str


class BenchReport(BenchRecord):
    """run.json of a benchmark."""

    folder: str
    machine: str
    dflashctl: str
    num_segments: int
    """Starts of the command: more than one, and it was resumed."""
    asked: Asked
    servers: dict[Arm, ServerLabel]
    extras: dict[Arm, Extras]
    dtype: str | None
    """As the server says it."""
    tau_ci: Interval | None
    speedup_ci: Interval | None
    acceptance_rate: float | None
    num_paired_prompts: int
    """Prompts that the speed-up is the mean of."""
    rows: tuple[Row, ...]
    prompts: tuple[PromptFigures, ...]
    categories: tuple[CategoryFigures, ...]
    positions: tuple[Position, ...]
    equality: Equality | None
    equality_note: str
    """What was compared, or why nothing was."""
    repetition: Repetition | None
    step_cost: StepCost | None
    verdict: str
    checks: tuple[Check, ...]
    invalid_because: tuple[str, ...]
    """Empty: the benchmark is valid."""
    ended_because: str | None = None
    """Why it ended before everything was asked."""
    sources: tuple[str, ...] = Field(default=())
    """Where each kind of figure comes from."""
