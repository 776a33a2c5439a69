"""An evaluation as a plan, and two reports side by side. Pure."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from dflashctl.stages.jobs import JobPlan, Site, plan_job
from dflashctl_remote.spec.evaluate import EvalReport, EvalSpec


@dataclass(frozen=True)
class Delta:
    """One figure in both reports."""

    name: str
    before: float
    after: float

    @property
    def change(self) -> float:
        """after / before - 1; 0 if there was nothing before."""
        return self.after / self.before - 1 if self.before else 0.0


@dataclass(frozen=True)
class Comparison:
    before: EvalReport
    after: EvalReport
    deltas: tuple[Delta, ...]
    caveats: tuple[str, ...]
    """Why the two may not be comparable."""

    @property
    def headline(self) -> Delta:
        return self.deltas[0]


def plan_evaluate(spec: EvalSpec, folder: Path, site: Site) -> JobPlan:
    absolute = spec.model_copy(
        update={
            "target": _absolute(spec.target),
            "checkpoint": _absolute(spec.checkpoint),
            "prompts": _absolute(spec.prompts),
            "output": _absolute(spec.output),
            "lookup_dataset": _absolute(spec.lookup_dataset) if spec.lookup_dataset else None,
        }
    )
    return plan_job("evaluate", absolute, folder, site, writes=(Path(absolute.output),))


def default_output(spec: EvalSpec, label: str, evaluations: Path) -> Path:
    """A folder named by the checkpoint and by all settings: the same command again goes on where it was."""
    settings = spec.model_dump_json(exclude={"output"})
    name = f"{label.replace('@', '-step-')}-{hashlib.sha256(settings.encode()).hexdigest()[:8]}"
    return evaluations / name


def compare(before: EvalReport, after: EvalReport) -> Comparison:
    """The headline first; caveats where the two were not measured on the same thing."""
    deltas = (
        Delta("tau without repeats", before.drafter_without_repeats.tau, after.drafter_without_repeats.tau),
        Delta("tau", before.drafter.tau, after.drafter.tau),
        Delta("tau of bigram look-up", before.bigram_lookup.tau, after.bigram_lookup.tau),
        Delta("share of repeated tokens", before.repeated_token_share, after.repeated_token_share),
        Delta("share of distinct 4-grams", before.distinct_4gram_share, after.distinct_4gram_share),
        Delta("mean answer tokens", before.mean_answer_tokens, after.mean_answer_tokens),
    )
    fields = ("target", "num_prompts", "block_size", "dtype", "method")
    caveats = tuple(
        f"{name} differs: {getattr(before, name)} and {getattr(after, name)}"
        for name in fields
        if getattr(before, name) != getattr(after, name)
    )
    return Comparison(before, after, deltas, caveats)


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())
