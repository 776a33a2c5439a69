import os
import time

import pytest

from dflashctl.artifacts import RunRef
from dflashctl.facts.runs import START_S, state_of
from dflashctl_remote.spec.events import CheckpointSaved, EventLog, Failed, Started, Stopped


@pytest.fixture
def run(tmp_path):
    ref = RunRef("r", tmp_path / "runs" / "r")
    ref.folder.mkdir(parents=True)
    ref.record_path.write_text("{}")
    return ref


@pytest.fixture
def write(run):
    def emit(*events):
        log = EventLog(run.events_path)
        for event in events:
            log.emit(event)
        log.close()

    return emit


@pytest.fixture
def owned(run, transport):
    """The run's process is this one, so that it lives."""

    def own(**changes):
        token = transport.token_of(os.getpid(), str(run.folder)).model_copy(update=changes)
        run.token_path.write_text(token.model_dump_json())

    return own


def test_a_job_killed_before_its_first_event_is_not_starting_for_ever(run, transport, owned):
    owned(start_ticks=2**40)
    assert state_of(run, transport).state == "ended without a word"


def test_a_start_cut_off_before_its_process_is_starting_for_a_while_only(run, transport):
    now_s = time.time()
    assert state_of(run, transport, now_s=now_s).state == "starting"
    assert state_of(run, transport, now_s=now_s + START_S + 1).state == "ended without a word"


def test_the_last_word_of_the_process_before_does_not_end_a_resumed_run(run, transport, owned, write):
    write(Started(job="train", pid=1, device="cpu"), Stopped(at_s=1.0, reason="asked to"))
    owned()
    assert state_of(run, transport).state == "running"


def test_the_last_word_counts_though_the_process_is_still_there(run, transport, owned, write):
    owned()
    write(Started(job="train", pid=1, device="cpu"), Failed(error="X", message="no room", exit_code=4))
    found = state_of(run, transport)
    assert (found.state, found.detail) == ("failed", "no room")


def test_a_run_of_another_boot_is_lost_to_it(run, transport, owned, write):
    write(Started(job="train", pid=1, device="cpu"))
    owned(boot_id="before")
    assert state_of(run, transport).state == "lost to reboot"


def test_the_end_of_a_long_account_is_enough_but_for_what_was_long_ago(run, transport, write, step, validated):
    (run.folder / "checkpoints" / "step-00000001").mkdir(parents=True)
    write(
        Started(job="train", pid=2**22 + 1, device="cpu"),
        validated(1),
        CheckpointSaved(step=1, path="p", size_bytes=1, seconds_s=0.1),
        *(step(number) for number in range(1, 3000)),
    )
    found = state_of(run, transport)
    assert (found.last_step.step, found.last_checkpoint.step) == (2999, 1)
    assert found.last_validated.tau == 3.21
    assert found.detail == f"process {2**22 + 1} is gone and wrote no last event"


def test_what_lies_before_the_end_of_a_long_account_is_not_parsed(run, transport, write, step):
    run.events_path.write_text("not an event\n")
    write(Started(job="train", pid=1, device="cpu"), *(step(number) for number in range(1, 3000)))
    assert state_of(run, transport).last_step.step == 2999
