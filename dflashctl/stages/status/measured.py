"""Acceptance that was measured of a run's checkpoints: by evaluations, and served. Estimates do not come in here."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from dflashctl.artifacts import RunRef, Workdir, workdir_option
from dflashctl.errors import ArtifactError
from dflashctl.records import BenchRecord
from dflashctl.stages.status.fact import Fact, unknown, unreadable
from dflashctl_remote.spec.errors import BundleError
from dflashctl_remote.spec.evaluate import EvalReport
from dflashctl_remote.spec.manifest import MANIFEST_NAME, read_manifest


@dataclass(frozen=True)
class Evaluation:
    report: EvalReport
    path: Path
    at_s: float


@dataclass(frozen=True)
class Benchmark:
    record: BenchRecord
    path: Path


def evaluations_of(workdir: Workdir) -> tuple[tuple[Evaluation, ...], tuple[Fact, ...]]:
    """Complete ones, oldest first, and those that cannot be read. Without manifest it is not one yet."""
    found, problems = [], []
    for path in sorted(workdir.evaluations.glob("*/report.json")):
        if not (path.parent / MANIFEST_NAME).is_file():
            continue
        try:
            at_s = read_manifest(path.parent, "evaluation").created_at_s
            found.append(Evaluation(EvalReport.model_validate_json(path.read_bytes()), path, at_s))
        except (BundleError, OSError, ValidationError) as error:
            problems.append(unreadable(f"evaluation {path.parent.name}", str(path), _first_line(error)))
    return tuple(sorted(found, key=lambda one: one.at_s)), tuple(problems)


def benchmarks_of(workdir: Workdir) -> tuple[tuple[Benchmark, ...], tuple[Fact, ...]]:
    """Finished ones, oldest first, and those that cannot be read."""
    found, problems = [], []
    for path in sorted(workdir.benchmarks.glob("*/run.json")):
        try:
            found.append(Benchmark(read_benchmark(path), path))
        except ArtifactError as error:
            problems.append(unreadable(f"benchmark {path.parent.name}", str(path), error.message))
    return tuple(sorted(found, key=lambda one: one.record.ended_at_s)), tuple(problems)


def read_benchmark(path: Path) -> BenchRecord:
    """Of a benchmark's run.json, what the bench stage promises to others. Raises ArtifactError."""
    try:
        raw = json.loads(path.read_bytes())
        return BenchRecord.model_validate({name: raw[name] for name in BenchRecord.model_fields if name in raw})
    except (OSError, ValueError, TypeError) as error:
        raise ArtifactError(f"{path} cannot be read as a benchmark's record: {_first_line(error)}") from error


def tau_facts(ref: RunRef, evaluations: Sequence[Evaluation]) -> tuple[Fact, ...]:
    """The newest measurement of the newest checkpoint that was measured, and what one must know to believe it."""
    own = [one for one in evaluations if ref.folder.resolve() in Path(one.report.checkpoint).resolve().parents]
    if not own:
        where = workdir_option(ref.folder.parent.parent)
        cure = f"dflashctl eval run --checkpoint {ref.run_id}@latest{where}"
        return (unknown("tau", "no checkpoint of this run was evaluated", cure),)
    by_step = {_step(one): one for one in own}
    last = by_step[max(by_step)]
    report, source = last.report, str(last.path)
    headline = report.drafter_without_repeats
    text = (
        f"{headline.tau:.2f} without repeats ({report.drafter.tau:.2f} with) at {_at(report.step)}, "
        f"{report.num_prompts} prompts, {report.drafter.num_verify_steps:,} verify steps"
    )
    beside = f"{report.bigram_lookup.tau:.2f} in the own text"
    if report.bigram_table is not None:
        beside += f", {report.bigram_table.tau:.2f} by a table of the training text"
    share = f"{100 * report.repeated_token_share:.1f} % in a repeated 16-gram"
    facts = [
        Fact("tau", text, "measured", source, last.at_s, headline.tau, "tokens a verify step", _doubts(ref, report)),
        Fact("tau of look-ups", beside, "measured", source, last.at_s, report.bigram_lookup.tau),
        Fact("repeated tokens", share, "measured", source, last.at_s, report.repeated_token_share),
    ]
    if len(by_step) > 1:
        facts.insert(1, _best(by_step))
    return tuple(facts)


def served_tau(ref: RunRef, benchmarks: Sequence[Benchmark]) -> Fact:
    """What an engine counted while it served the run's checkpoint; another thing than an evaluation's tau."""
    label = f"{ref.run_id}@"
    own = [one for one in benchmarks if (one.record.drafter_label or "").startswith(label)]
    own = [one for one in own if one.record.tau is not None]
    if not own:
        cure = f"dflashctl bench --server NAME{workdir_option(ref.folder.parent.parent)}"
        return unknown("served tau", "no benchmark served a checkpoint of this run", cure)
    record = own[-1].record
    step = (record.drafter_label or "").removeprefix(label)
    newest = max((checkpoint.step or 0 for checkpoint in ref.checkpoints()), default=0)
    doubts = [] if record.is_valid else ["the benchmark is not valid"]
    if step.isdigit() and newest > int(step):
        doubts.append(_outdated(int(step), newest))
    text = (
        f"{record.tau:.2f} at step {step}, {record.engine} as {record.server}, "
        f"{record.num_prompts} prompts, {record.num_verify_steps:,} verify steps"
    )
    source, warning = str(own[-1].path), "; ".join(doubts)
    return Fact("served tau", text, "measured", source, record.ended_at_s, record.tau, "tokens a verify step", warning)


def _best(by_step: dict[int, Evaluation]) -> Fact:
    ordered = sorted(by_step.items())
    taus = {step: one.report.drafter_without_repeats.tau for step, one in ordered}
    best = max(taus, key=lambda step: taus[step])
    all_of_them = ", ".join(f"{step:,}: {tau:.2f}" for step, tau in taus.items())
    how = {(one.report.num_prompts, one.report.method, one.report.dtype) for _, one in ordered}
    warning = "" if len(how) == 1 else "not all were measured alike: prompts, method or dtype differ"
    text = f"{taus[best]:.2f} at step {best:,}, of {len(taus)} measured ({all_of_them})"
    path, at_s = by_step[best].path, by_step[best].at_s
    return Fact("best tau", text, "measured", str(path), at_s, taus[best], "tokens a verify step", warning)


def _doubts(ref: RunRef, report: EvalReport) -> str:
    doubts = []
    newest = max((checkpoint.step or 0 for checkpoint in ref.checkpoints()), default=0)
    if report.step is not None and newest > report.step:
        doubts.append(_outdated(report.step, newest))
    if report.num_greedy_equal < report.num_greedy_checked:
        num_wrong = report.num_greedy_checked - report.num_greedy_equal
        doubts.append(f"{num_wrong} of {report.num_greedy_checked} checked answers differ from plain decoding")
    if report.num_greedy_checked == 0:
        doubts.append("no answer was compared with plain decoding")
    return "; ".join(doubts)


def _outdated(measured: int, newest: int) -> str:
    return f"measured at step {measured:,}, and step {newest:,} is there by now"


def _step(one: Evaluation) -> int:
    return -1 if one.report.step is None else one.report.step


def _at(step: int | None) -> str:
    return "an unnamed step" if step is None else f"step {step:,}"


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error).splitlines()[0] if str(error) else type(error).__name__
