"""Acceptance that was measured for a run's checkpoints, out of evaluations. Estimates do not come in here."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from dflashctl.artifacts import RunRef, Workdir
from dflashctl.stages.status.fact import Fact, unknown
from dflashctl_remote.spec.errors import BundleError
from dflashctl_remote.spec.evaluate import EvalReport
from dflashctl_remote.spec.manifest import MANIFEST_NAME, read_manifest


@dataclass(frozen=True)
class Measured:
    report: EvalReport
    path: Path
    at_s: float


def measurements(workdir: Workdir) -> tuple[tuple[Measured, ...], tuple[Fact, ...]]:
    """Complete evaluations, oldest first, and those that cannot be read. Without manifest it is not one yet."""
    found, problems = [], []
    for path in sorted(workdir.evaluations.glob("*/report.json")):
        if not (path.parent / MANIFEST_NAME).is_file():
            continue
        try:
            at_s = read_manifest(path.parent, "evaluation").created_at_s
            found.append(Measured(EvalReport.model_validate_json(path.read_bytes()), path, at_s))
        except (BundleError, OSError, ValidationError) as error:
            text = f"unreadable: {str(error).splitlines()[0]}"
            problems.append(Fact(f"evaluation {path.parent.name}", text, "unknown", str(path)))
    return tuple(sorted(found, key=lambda one: one.at_s)), tuple(problems)


def tau_facts(ref: RunRef, measured: Sequence[Measured]) -> tuple[Fact, ...]:
    """The newest measurement of the run's checkpoints, and what one must know to believe it."""
    own = [one for one in measured if ref.folder.resolve() in Path(one.report.checkpoint).resolve().parents]
    if not own:
        why = f"dflashctl eval run --checkpoint {ref.run_id}@latest"
        return (unknown("tau", "no checkpoint of this run was evaluated", why),)
    last = own[-1]
    report = last.report
    source = str(last.path)
    newest = max((checkpoint.step or 0 for checkpoint in ref.checkpoints()), default=None)
    warning = ""
    if newest is not None and report.step is not None and newest > report.step:
        warning = f"measured at step {report.step:,}, and step {newest:,} is there by now"
    headline = report.drafter_without_repeats
    at = f"at step {report.step:,}" if report.step is not None else "at an unnamed step"
    text = (
        f"{headline.tau:.2f} without repeats ({report.drafter.tau:.2f} with) {at}, "
        f"{report.num_prompts} prompts, {report.drafter.num_verify_steps:,} verify steps"
    )
    beside = f"{report.bigram_lookup.tau:.2f} in the own text"
    if report.bigram_table is not None:
        beside += f", {report.bigram_table.tau:.2f} by a table of the training text"
    share = f"{100 * report.repeated_token_share:.1f} % in a repeated 16-gram"
    return (
        Fact("tau", text, "measured", source, last.at_s, headline.tau, warning=warning),
        Fact("tau of look-ups", beside, "measured", source, last.at_s, report.bigram_lookup.tau),
        Fact("repeated tokens", share, "measured", source, last.at_s, report.repeated_token_share),
    )
