"""Both ways of asking how a run does must agree: its folder read here, and the script that any host is asked by."""

import os

import pytest

from dflashctl.artifacts import Workdir
from dflashctl.errors import ConfigError
from dflashctl.facts.host_runs import run_on, runs_on
from dflashctl.facts.runs import state_if_readable
from dflashctl_remote.spec.events import CheckpointSaved, EventLog, Finished, Started, Stopped
from dflashctl_remote.spec.process import ExitRecord
from dflashctl_remote.spec.train import RunRecord, TrainSpec


@pytest.fixture
def workdir(tmp_path):
    return Workdir(tmp_path / 'it\'s a "work" $folder')


@pytest.fixture
def make(workdir, transport):
    def run(name, *events, exit_code=None, **token_changes):
        ref = workdir.new_run(name)
        ref.folder.mkdir(parents=True)
        spec = TrainSpec(target="/t", dataset="/d", num_steps=10)
        record = RunRecord(run_id=name, created_at_s=1.0, bundle_sha="b", train=spec)
        ref.record_path.write_text(record.model_dump_json(indent=2))
        token = transport.token_of(os.getpid(), "marker of nobody").model_copy(update=token_changes)
        ref.token_path.write_text(token.model_dump_json(indent=2))
        os.utime(ref.token_path, (500.0, 500.0))
        log = EventLog(ref.events_path)
        for event in events:
            log.emit(event)
        log.close()
        if exit_code is not None:
            end = ExitRecord(code=exit_code, signal=None, at_s=9.0, stop=False)
            (ref.folder / "exit.json").write_text(end.model_dump_json())
        return ref

    return run


STARTED = Started(at_s=501.0, job="train", pid=1, device="cpu")
CASES = {
    "living": ((STARTED,), {}),
    "silent": ((), {}),
    "finished": ((STARTED, Finished(at_s=502.0)), {"start_ticks": 2**40}),
    "stopped": ((STARTED, Stopped(at_s=502.0, reason='he said "stop"\\')), {"start_ticks": 2**40}),
    "died": ((STARTED,), {"start_ticks": 2**40}),
    "rebooted": ((STARTED,), {"boot_id": "another"}),
    "contained": ((STARTED,), {"pid_namespace": 4}),
    "failed": ((STARTED,), {"start_ticks": 2**40, "exit_code": 3}),
    "resumed": ((STARTED.model_copy(update={"at_s": 1.0}), Stopped(at_s=2.0, reason="before")), {}),
}


def test_both_ways_agree_on_every_state(shell, workdir, transport, make):
    refs = [make(name, *events, **changes) for name, (events, changes) in CASES.items()]
    here = {ref.run_id: state_if_readable(ref, transport) for ref in refs}
    there = {state.run.run_id: state for state in runs_on(shell, str(workdir.path)).states}
    assert {name: (state.state, state.detail) for name, state in here.items()} == {
        name: (state.state, state.detail) for name, state in there.items()
    }
    assert len({state.state for state in here.values()}) == 8


def test_the_last_step_and_a_checkpoint_and_validation_of_long_ago_are_told(shell, workdir, make, step, validated):
    saved = CheckpointSaved(at_s=501.5, step=1, path="p", size_bytes=1, seconds_s=0.1)
    ref = make("long", STARTED, validated(1), saved, *(step(number) for number in range(1, 300)))
    (ref.folder / "checkpoints/step-00000001").mkdir(parents=True)
    (ref.folder / "checkpoints/step-00000001/manifest.json").write_text("{}")
    (state,) = runs_on(shell, str(workdir.path)).states
    assert (state.last_step.step, state.last_checkpoint.step) == (299, 1)
    assert state.last_validated.tau == 3.21


def test_one_run_comes_with_its_record(shell, workdir, make):
    make("mine", STARTED)
    make("yours", STARTED)
    found = run_on(shell, str(workdir.path), "mine")
    assert (found.record.run_id, found.state.run.run_id, found.record.train.num_steps) == ("mine", "mine", 10)


def test_a_run_that_is_not_there_is_refused_with_those_that_are(shell, workdir, make):
    make("mine", STARTED)
    with pytest.raises(ConfigError, match=r"no run yours .*there: mine"):
        run_on(shell, str(workdir.path), "yours")


def test_a_damaged_run_does_not_hide_the_others(shell, workdir, make):
    make("good", STARTED)
    make("bad", STARTED).token_path.write_text('{"pid": 5}')
    make("torn", STARTED).events_path.write_text("no event\n")
    states = {state.run.run_id: state.state for state in runs_on(shell, str(workdir.path)).states}
    assert states == {"good": "running", "bad": "unreadable", "torn": "unreadable"}


def test_no_work_folder_is_no_run(shell, tmp_path):
    assert runs_on(shell, str(tmp_path / "none")).states == ()
