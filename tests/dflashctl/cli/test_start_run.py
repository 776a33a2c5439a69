import pytest

from dflashctl.artifacts import Workdir
from dflashctl.cli.output import Output
from dflashctl.cli.start_run import watch_other, watch_own, with_absolute_paths
from dflashctl.errors import JobFailed
from dflashctl.stages.jobs import Site
from dflashctl.stages.train import apply
from dflashctl.stages.train.plan import plan_train
from dflashctl.targets import TargetSize
from dflashctl_remote.spec.train import TrainSpec

FINISHES, FAILS, WAITS, DIES = range(4)


@pytest.fixture
def begin(tmp_path, transport, fake_bundle, dataset_info):
    def make(behaviour):
        plan = plan_train(
            TrainSpec(target="/t", dataset="/d", num_steps=10, seed=behaviour),
            Workdir(tmp_path).new_run("r"),
            Site("local", transport.python(), fake_bundle),
            target=TargetSize(8, 64, 128, 100),
            dataset=dataset_info,
            bundle_sha="b" * 64,
            git=None,
            now_s=5.0,
        )
        return plan.run, apply.start(plan, transport)

    return make


def test_watching_ones_own_run_ends_with_its_state(begin, transport, capsys):
    run, handle = begin(FINISHES)
    watch_own(handle, run, transport, Output())
    assert "run r finished" in capsys.readouterr().out


def test_watching_another_process_run_ends_when_it_does(begin, transport, capsys):
    run, handle = begin(WAITS)
    next(handle.events())
    run.stop_path.write_text("{}")
    watch_other(run, transport, Output())
    handle.wait()
    assert "run r stopped" in capsys.readouterr().out


def test_watching_a_run_that_failed_raises_what_it_said(begin, transport):
    run, handle = begin(FAILS)
    handle.wait()
    with pytest.raises(JobFailed, match="the taps are wrong"):
        watch_other(run, transport, Output())


def test_watching_a_run_that_died_points_to_its_log(begin, transport):
    run, handle = begin(DIES)
    handle.wait()
    with pytest.raises(JobFailed, match="is gone") as caught:
        watch_other(run, transport, Output())
    assert caught.value.exit_code == 4
    assert caught.value.hint.startswith("dflashctl train logs --raw r")


def test_watching_a_run_that_never_speaks_ends(tmp_path, transport):
    run = Workdir(tmp_path).new_run("r")
    run.folder.mkdir(parents=True)
    run.events_path.touch()
    with pytest.raises(JobFailed, match="has not said anything yet"):
        watch_other(run, transport, Output(), start_s=0.0)


def test_paths_of_this_machine_become_absolute_and_a_warm_start_that_is_not_there_stays_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = with_absolute_paths(TrainSpec(target="t", dataset="~/d", num_steps=1, warm_start="w"))
    assert (spec.target, spec.warm_start) == (str(tmp_path / "t"), str(tmp_path / "w"))
    assert spec.dataset.startswith("/") and spec.dataset.endswith("/d")
    assert with_absolute_paths(TrainSpec(target="t", dataset="d", num_steps=1)).warm_start is None
