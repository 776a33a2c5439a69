from dflashctl.views.kernels import kernels_report
from dflashctl_remote.spec.kernels import Arm, Bar, Bench, Check, KernelsReport

CHECKS = (
    Check(kernel="linear_ce", claim="top-1", state="passed"),
    Check(kernel="linear_ce", claim="gradient", state="failed", detail="found 2, at most 1 was wanted"),
    Check(kernel="linear_ce", claim="real shape", state="skipped", detail="needs a GPU"),
)
FLOOR = Arm(name="two products", role="floor", median_ms=50.0, low_ms=49.0, high_ms=51.0, num_runs=12, extra_bytes=0)
OURS = Arm(name="ours", role="ours", median_ms=54.0, low_ms=53.5, high_ms=55.0, num_runs=12, extra_bytes=2**30)
MISSING = Arm(name="liger", role="other", detail="liger-kernel is not installed")


def report(**changes):
    fields = {"action": "test", "device": "cpu", "versions": {"torch": "2.13.0"}, "checks": CHECKS}
    return KernelsReport(**{**fields, **changes})


def test_checks_are_listed_with_what_is_wrong_or_missing_and_counted(text_of):
    text = text_of(kernels_report(report()))
    assert "cpu: torch 2.13.0" in text
    assert "found 2, at most 1 was wanted" in text and "needs a GPU" in text
    assert "1 passed, 1 failed, 1 skipped" in text


def test_arms_are_compared_with_the_floor(text_of):
    bench = Bench(kernel="linear_ce", shape="7680 rows", arms=(OURS, FLOOR, MISSING))
    lines = text_of(kernels_report(report(benches=(bench,)))).splitlines()
    ours = next(line for line in lines if line.strip().startswith("ours"))
    assert ours.split() == ["ours", "54.00", "53.50", "to", "55.00", "12", "1.080", "1.0", "GiB"]
    assert "liger-kernel is not installed" in next(line for line in lines if "liger" in line)


def test_bars_say_whether_they_were_reached(text_of):
    bars = (Bar(what="time", limit=1.1, found=1.08), Bar(what="memory", limit=1.2, found=1.3, unit="GiB"))
    text = text_of(kernels_report(report(benches=(Bench(kernel="k", shape="s", arms=(OURS,), bars=bars),))))
    assert "reached: time 1.080, at most 1.1 was wanted" in text
    assert "missed: memory 1.300 GiB, at most 1.2 GiB was wanted" in text
