import pytest

from dflashctl_remote.kernels.report import make_report
from dflashctl_remote.spec.errors import BadInput
from dflashctl_remote.spec.events import Progress
from dflashctl_remote.spec.kernels import Arm, Bar, Bench, Check, KernelsReport, KernelsSpec


def test_bench_on_a_cpu_is_refused_with_what_works_there():
    spec = KernelsSpec(action="bench", output="/o", device="cpu")
    with pytest.raises(BadInput, match="needs a GPU") as caught:
        make_report(spec, lambda event: None)
    assert "kernels test" in caught.value.hint


@pytest.mark.usefixtures("interpreter")
def test_report_holds_the_checks_of_the_kernels_asked_for_and_the_versions():
    events = []
    spec = KernelsSpec(action="test", kernels=("label_argmax",), output="/o", device="cpu")
    report = make_report(spec, events.append)
    assert {check.kernel for check in report.checks} == {"label_argmax"}
    assert report.device == "cpu" and {"python", "torch", "triton"} <= set(report.versions)
    assert [event.done for event in events if isinstance(event, Progress)] == [0, 1]


def test_bar_is_met_up_to_its_limit():
    assert Bar(what="ratio", limit=1.1, found=1.1).is_met
    assert not Bar(what="ratio", limit=1.1, found=1.11).is_met


def test_floor_is_the_first_that_was_measured():
    arms = (
        Arm(name="a", role="floor"),
        Arm(name="b", role="other", median_ms=9.0),
        Arm(name="c", role="floor", median_ms=3.0),
    )
    assert Bench(kernel="k", shape="", arms=arms).floor_ms == 3.0


def test_failed_checks_are_those_that_failed():
    checks = tuple(Check(kernel="k", claim=state, state=state) for state in ("passed", "failed", "skipped"))
    report = KernelsReport(action="test", device="cpu", versions={}, checks=checks)
    assert [check.claim for check in report.failed] == ["failed"]
