"""What `bench` does around its stage: servers found, a baseline started and ended, files kept, exit code chosen."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import FrameType

from dflashctl.artifacts import ServerRef, Workdir
from dflashctl.bundle import bundle_root, bundle_sha
from dflashctl.cli.follow import Watcher
from dflashctl.cli.options import transport_of
from dflashctl.cli.output import Output
from dflashctl.config.bench import BenchSpec
from dflashctl.errors import ConfigError, EngineUnhealthy, Interrupted, InvalidBenchmark, Regression
from dflashctl.facts.servers import state_of
from dflashctl.records import ServerRecord
from dflashctl.stages.bench.account import (
    JOURNAL_NAME,
    EndRecord,
    Journal,
    Line,
    RequestRecord,
    SegmentRecord,
    ServerLabel,
    read_journal,
)
from dflashctl.stages.bench.apply import Start, conclude, run_turns
from dflashctl.stages.bench.compare import BenchComparison
from dflashctl.stages.bench.plan import (
    BenchPlan,
    check_same,
    check_spec,
    finished_keys,
    label_of,
    label_of_plain,
    new_folder,
    plan_bench,
)
from dflashctl.stages.bench.prompts import PromptSet, read_prompts
from dflashctl.stages.bench.report import BenchReport
from dflashctl.stages.deploy.apply import bring_down, bring_up
from dflashctl.stages.deploy.plan import DeployPlan, plan_deploy, spec_of, without_drafter
from dflashctl.transport.base import Transport
from dflashctl.transport.machine import describe_machine
from dflashctl.views.bench_html import html
from dflashctl.views.bench_markdown import markdown
from dflashctl.views.job import JobBoard
from dflashctl_remote.spec.manifest import write_atomically

HTML_NAME = "report.html"
TABLE_NAME = "table.md"


@dataclass(frozen=True)
class Case:
    """A benchmark that was asked for, found to be possible as far as files and servers tell."""

    spec: BenchSpec
    prompts: PromptSet
    folder: Path
    lines: tuple[Line, ...]
    """Of earlier starts; empty: a new benchmark."""
    workdir: Workdir
    transport: Transport
    server: ServerLabel
    server_ref: ServerRef
    baseline: ServerLabel | None
    """None: one is to be started."""

    @classmethod
    def of(cls, spec: BenchSpec, workdir: Path, resume: Path | None, output: Path | None = None) -> "Case":
        """Raises ConfigError, ArtifactError or EngineUnhealthy; nothing is started or asked for an answer."""
        check_spec(spec)
        prompts = read_prompts(Path(spec.prompts), spec.num_prompts)
        root = Workdir(workdir)
        transport = transport_of("local")
        ref = root.known_server(spec.server)
        record = _ready(ref, transport)
        baseline = None
        if spec.baseline is not None:
            baseline = label_of(_ready(root.known_server(spec.baseline), transport))
        stamp = time.strftime("%Y%m%d-%H%M%S")
        if resume is None and output is not None and (output / JOURNAL_NAME).is_file():
            resume = output
        given = resume or output
        folder = given.expanduser().absolute() if given else new_folder(root.benchmarks, spec.server, stamp)
        lines = read_journal(folder) if resume else ()
        return cls(spec, prompts, folder, lines, root, transport, label_of(record), ref, baseline)

    def plan(self, baseline: ServerLabel) -> BenchPlan:
        finished = finished_keys(line for line in self.lines if isinstance(line, RequestRecord))
        plan = plan_bench(self.spec, self.server, baseline, self.prompts, self.folder, finished=finished)
        segments = [line for line in self.lines if isinstance(line, SegmentRecord)]
        if segments:
            check_same(plan, segments[-1])
        return plan

    def expected(self) -> tuple[BenchPlan, DeployPlan | None]:
        """What would happen: the plan, and the launch of the baseline if there is to be one."""
        if self.baseline is not None:
            return self.plan(self.baseline), None
        return self.plan(label_of_plain(self.server, self.baseline_name)), self.baseline_plan()

    @property
    def baseline_name(self) -> str:
        return f"{self.spec.server}-baseline"

    def baseline_plan(self) -> DeployPlan:
        spec = without_drafter(spec_of(self.server_ref), self.baseline_name)
        return plan_deploy(spec, self.workdir, python=self.transport.python(), bundle_root=bundle_root())

    def start(self) -> Start:
        git = self.transport.git(Path(__file__).parent)
        commit = "" if git is None else f" ({git.sha[:12]}{', changed' if git.is_dirty else ''})"
        num_before = sum(isinstance(line, SegmentRecord) for line in self.lines)
        return Start(num_before, describe_machine(), f"{version('dflashctl')}{commit}")


def run_bench(case: Case, out: Output) -> tuple[BenchReport, EndRecord]:
    """Measure and keep: run.json, report.html and table.md beside requests.jsonl.

    Raises Interrupted after Ctrl-C; a baseline that was started is ended whatever happens.
    """
    plan, _ = case.expected()
    if plan.num_requests == 0:
        out.say("everything was answered before: nothing is left to ask")
        return _concluded(case), EndRecord(segment=0, ended_s=0.0)
    with _interrupted_by_termination():
        try:
            with _baseline(case, out) as baseline:
                plan = case.plan(baseline)
                if case.lines:
                    out.say(f"going on: {plan.num_skipped} requests were answered before, {plan.num_requests} are left")
                watcher = Watcher(out, JobBoard(f"bench {case.spec.server}", time.time))
                with watcher.shown():
                    end = run_turns(plan, Journal(case.folder), case.start(), watcher.add)
        except KeyboardInterrupt:
            if not (case.folder / "requests.jsonl").is_file():
                raise
            raise Interrupted(
                f"interrupted; what was answered is in {case.folder}",
                hint=f"the same command with --resume {case.folder}",
            ) from None
    return _concluded(case), end


def refuse_bad_outcome(report: BenchReport, end: EndRecord, comparison: BenchComparison | None) -> None:
    """Raises EngineUnhealthy, InvalidBenchmark or Regression, in this order."""
    if end.reason is not None:
        num_answered = sum(row.num_requests for row in report.rows)
        raise EngineUnhealthy(
            f"{end.reason}; {num_answered} requests had been answered, and are kept in {report.folder}",
            hint=f"dflashctl deploy list, then the same command with --resume {report.folder}",
        )
    if not report.is_valid:
        more = f" (and {len(report.invalid_because) - 1} more)" if len(report.invalid_because) > 1 else ""
        raise InvalidBenchmark(
            f"the benchmark proves nothing: {report.invalid_because[0]}{more}", hint=f"{report.folder}/{HTML_NAME}"
        )
    if comparison is not None:
        refuse_regression(comparison)


def refuse_regression(comparison: BenchComparison) -> None:
    if comparison.after.invalid_because:
        raise InvalidBenchmark(
            f"nothing can be said of B, which proves nothing: {comparison.after.invalid_because[0]}",
            hint=f"{comparison.after.folder}/{HTML_NAME}",
        )
    if comparison.regressions:
        raise Regression(f"worse by more than chance allows: {'; '.join(comparison.regressions)}")


def _concluded(case: Case) -> BenchReport:
    report = conclude(case.folder, case.prompts)
    write_atomically(case.folder / TABLE_NAME, markdown(report))
    write_atomically(case.folder / HTML_NAME, html(report))
    return report


def _ready(ref: ServerRef, transport: Transport) -> ServerRecord:
    state = state_of(ref, transport)
    if state.state != "ready" or state.record is None:
        detail = f" ({state.detail})" if state.detail else ""
        raise EngineUnhealthy(
            f"server {ref.name} is not ready to be measured: it is {state.state}{detail}",
            hint=f"dflashctl deploy up --server {ref.name}",
        )
    return state.record


@contextmanager
def _baseline(case: Case, out: Output) -> Iterator[ServerLabel]:
    """The baseline that was named, or one that lives as long as the context."""
    if case.baseline is not None:
        yield case.baseline
        return
    plan = case.baseline_plan()
    out.say(f"no --baseline: starting {plan.spec.name}, the same server without its drafter, on a free port")
    came = bring_up(plan, case.workdir, case.transport, bundle_sha=bundle_sha(), say=out.say)
    if came.was_running:
        raise ConfigError(
            f"{plan.spec.name} is up already: another benchmark uses it, or one that was killed left it",
            hint=f"dflashctl deploy down --server {plan.spec.name}, or --baseline {plan.spec.name} to use it",
        )
    try:
        yield label_of(came.record, is_temporary=True)
    finally:
        # A second Ctrl-C must not leave it behind.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            down = bring_down(plan.server, case.transport, say=out.say)
            out.say(f"{plan.spec.name}: {down.how}")
        finally:
            signal.signal(signal.SIGINT, before)


@contextmanager
def _interrupted_by_termination() -> Iterator[None]:
    """SIGTERM and SIGHUP end a benchmark as Ctrl-C does, so that no baseline outlives it."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
