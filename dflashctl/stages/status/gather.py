"""Reads all that a work folder and its processes can tell. Changes nothing; what cannot be read is a fact too."""

from concurrent.futures import ThreadPoolExecutor

from dflashctl.artifacts import Workdir
from dflashctl.stages.status.datasets import dataset_subjects
from dflashctl.stages.status.fact import Fact, Snapshot, unknown
from dflashctl.stages.status.measured import benchmarks_of, evaluations_of
from dflashctl.stages.status.serving import benchmark_subjects, server_subject
from dflashctl.stages.status.training import run_subject
from dflashctl.transport.base import Transport

ASKED_AT_ONCE = 8
"""Servers, whose health is a question over HTTP."""


def gather(workdir: Workdir, transport: Transport, now_s: float) -> Snapshot:
    """What is so now on the transport's host, as far as the work folder and its processes tell."""
    evaluations, bad_evaluations = evaluations_of(workdir)
    benchmarks, bad_benchmarks = benchmarks_of(workdir)
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        # One that hangs must not keep the others waiting.
        servers = tuple(pool.map(lambda ref: server_subject(ref, transport, now_s), workdir.servers()))
    subjects = (
        *(run_subject(ref, evaluations, benchmarks, transport, now_s) for ref in workdir.runs()),
        *servers,
        *benchmark_subjects(benchmarks, servers),
        *dataset_subjects(workdir),
    )
    problems = (*_no_folder(workdir), *bad_evaluations, *bad_benchmarks)
    return Snapshot(transport.name, str(workdir.path), now_s, subjects, problems)


def _no_folder(workdir: Workdir) -> tuple[Fact, ...]:
    """An empty status and a mistyped folder must not look the same."""
    if workdir.path.is_dir():
        return ()
    return (unknown("work folder", f"there is no folder {workdir.path}", "--workdir DIR"),)
