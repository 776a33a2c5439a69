"""`dflashctl train` on hosts behind SSH, by its commands; the truth is looked at on the hosts themselves."""


import pytest

from training import TRAINS, Site


@pytest.fixture
def site(lab, tmp_path):
    made = Site(lab, tmp_path)
    yield made
    made.operator.end_started()


def test_a_run_is_started_listed_followed_and_stopped_behind_a_jump_host(site, kpro6):
    started = site.start("kpro6", "r1", TRAINS)
    assert (started.code, started.err) == (0, started.err), started.err
    assert "run r1 started on kpro6" in started.out
    assert site.states("kpro6") == {"r1": "running"}
    assert len(site.processes("kpro6", "r1")) >= 2
    logs = site.operator.cli("train", "logs", "r1", "--host", "kpro6", "-n", "3")
    assert logs.out.count("loss") == 3
    stopped = site.stop("kpro6", "r1")
    assert stopped.code == 0, stopped.err
    assert "ended when asked; no process of it is left" in stopped.out
    assert site.processes("kpro6", "r1") == []
    assert site.states("kpro6") == {"r1": "stopped"}
