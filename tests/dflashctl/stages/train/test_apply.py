from dataclasses import replace

import pytest

from dflashctl.artifacts import Workdir
from dflashctl.errors import ConfigError
from dflashctl.facts.runs import state_if_readable, state_of
from dflashctl.stages.jobs import Site
from dflashctl.stages.train import apply
from dflashctl.stages.train.plan import plan_train
from dflashctl.targets import TargetSize
from dflashctl_remote.spec.placement import PlacementSpec
from dflashctl_remote.spec.train import OptimSpec, TrainSpec

SMALL = TargetSize(num_layers=8, hidden_size=64, intermediate_size=128, vocab_size=100)
FINISHES, FAILS, WAITS, DIES = range(4)


@pytest.fixture
def plan(tmp_path, transport, fake_bundle, dataset_info):
    def make(behaviour, run_id="r", **changes):
        return plan_train(
            TrainSpec(**{"target": "/t", "dataset": "/d", "num_steps": 10, "seed": behaviour, **changes}),
            Workdir(tmp_path).new_run(run_id),
            Site("local", transport.python(), fake_bundle),
            target=SMALL,
            dataset=dataset_info,
            bundle_sha="b" * 64,
            git=None,
            now_s=5.0,
        )

    return make


def run_to_end(plan, transport):
    handle = apply.start(plan, transport)
    list(handle.events())
    handle.wait()
    return state_of(plan.run, transport)


@pytest.mark.parametrize(
    ("behaviour", "state", "detail"),
    [(FINISHES, "finished", ""), (FAILS, "failed", "the taps are wrong"), (DIES, "ended without a word", "is gone")],
)
def test_state_of_a_run_that_has_ended(plan, transport, behaviour, state, detail):
    found = run_to_end(plan(behaviour), transport)
    assert found.state == state
    assert detail in found.detail


def test_run_is_running_until_it_is_asked_to_stop(plan, transport):
    made = plan(WAITS)
    handle = apply.start(made, transport)
    events = handle.events()
    next(events)
    running = state_of(made.run, transport)
    made.run.stop_path.write_text("{}")
    list(events)
    assert running.state == "running"
    assert handle.wait() == 0
    assert state_of(made.run, transport).state == "stopped"


def test_name_that_is_taken_starts_nothing(plan, transport):
    run_to_end(plan(FINISHES), transport)
    before = plan(FINISHES).run.events_path.read_bytes()
    with pytest.raises(ConfigError, match=r"run r exists already \(finished\)"):
        apply.start(plan(FINISHES), transport)
    assert plan(FINISHES).run.events_path.read_bytes() == before


def test_run_that_is_running_is_not_resumed(plan, transport):
    made = plan(WAITS)
    handle = apply.start(made, transport)
    next(handle.events())
    with pytest.raises(ConfigError, match="is running, there is nothing to resume"):
        apply.resume(made.run, made.job, transport)
    handle.kill()


def test_resume_takes_the_stop_request_away(plan, transport):
    made = plan(WAITS)
    handle = apply.start(made, transport)
    next(handle.events())
    made.run.stop_path.write_text("{}")
    handle.wait()
    again = apply.resume(made.run, made.job, transport)
    next(again.events())
    is_requested = made.run.stop_path.exists()
    again.kill()
    assert not is_requested


def test_start_whose_record_cannot_be_written_leaves_the_name_free(plan, transport):
    made = plan(FINISHES)
    unwritable = replace(made, job=replace(made.job, spec_json="\udcff"))
    with pytest.raises(UnicodeEncodeError):
        apply.start(unwritable, transport)
    assert run_to_end(made, transport).state == "finished"


def test_folder_without_a_record_is_not_offered_for_resuming(plan, transport):
    made = plan(FINISHES)
    made.run.folder.mkdir(parents=True)
    with pytest.raises(ConfigError, match="holds no run") as caught:
        apply.start(made, transport)
    assert caught.value.hint.startswith("remove it")


def test_damaged_run_is_listed_as_unreadable(plan, transport):
    made = plan(FINISHES)
    run_to_end(made, transport)
    made.run.events_path.write_text("garbage\n")
    found = state_if_readable(made.run, transport)
    assert found.state == "unreadable"
    assert "garbage" in found.detail


def test_a_run_on_several_hosts_is_not_started_on_one(plan, transport):
    made = plan(FINISHES, optim=OptimSpec(accumulation=2), placement=PlacementSpec(nodes=2))
    with pytest.raises(ConfigError, match="a run on 2 hosts is started by torchrun"):
        apply.start(made, transport)
    assert not made.run.folder.exists()
