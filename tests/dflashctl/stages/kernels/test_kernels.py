from pathlib import Path

import pytest

from dflashctl.errors import ArtifactError, InvalidBenchmark, Regression
from dflashctl.stages.jobs import Site
from dflashctl.stages.kernels.apply import problem_of, read_kernels_report
from dflashctl.stages.kernels.plan import plan_kernels
from dflashctl_remote.spec.kernels import Check, KernelsReport, KernelsSpec

PASSED = Check(kernel="linear_ce", claim="top-1", state="passed")
FAILED = Check(kernel="linear_ce", claim="gradient", state="failed", detail="found 2, at most 1 was wanted")


def report(*checks, action="test"):
    return KernelsReport(action=action, device="cpu", versions={}, checks=checks)


def test_plan_names_the_report_that_is_written_by_its_whole_path(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    site = Site(host="local", python="/py", bundle_root=Path("/bundle"))
    plan = plan_kernels(KernelsSpec(action="test", output="r.json"), Path("/j"), site)
    assert plan.writes == (tmp_path / "r.json",)
    assert f'"output": "{tmp_path / "r.json"}"' in plan.spec_json


def test_report_is_read_back(tmp_path):
    (tmp_path / "r.json").write_text(report(PASSED).model_dump_json())
    assert read_kernels_report(tmp_path / "r.json") == report(PASSED)


@pytest.mark.parametrize("content", [None, "{}"], ids=["missing", "of another kind"])
def test_what_is_no_report_is_an_artifact_error(tmp_path, content):
    if content is not None:
        (tmp_path / "r.json").write_text(content)
    with pytest.raises(ArtifactError):
        read_kernels_report(tmp_path / "r.json")


def test_nothing_is_wrong_if_no_check_failed():
    assert problem_of(report(PASSED), "kpro6") is None


@pytest.mark.parametrize(("action", "kind"), [("test", Regression), ("bench", InvalidBenchmark)])
def test_failed_check_is_told_with_the_host_and_exits_7(action, kind):
    problem = problem_of(report(PASSED, FAILED, action=action), "kpro6")
    assert isinstance(problem, kind) and problem.exit_code == 7
    assert problem.message.startswith(
        "1 of 2 checks of kernels failed on kpro6, the first linear_ce, gradient: found 2"
    )
