from dflashctl.cli.demo import _timed
from dflashctl.stages.demo.apply import DemoReport, StageTime


def test_time_of_a_stage_that_was_broken_off_is_added_up():
    report = DemoReport(target="/t", machine="m", num_cpus=2)
    for wall_s in (2.0, 3.0):
        report = _timed(report, "train start", "dflashctl train start", wall_s)
    assert report.stages == (StageTime(name="train start", command="dflashctl train start", wall_s=5.0),)
