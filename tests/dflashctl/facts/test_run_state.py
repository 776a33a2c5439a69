from pathlib import Path

import pytest

from dflashctl.artifacts import RunRef
from dflashctl.facts.run_state import START_S, Seen, Told, judge
from dflashctl_remote.spec.events import Failed, Finished, Started, Stopped
from dflashctl_remote.spec.process import ExitRecord, ProcessToken

RUN = RunRef("r", Path("/w/runs/r"), "kpro6")
TOKEN = ProcessToken(boot_id="b", pid=42, start_ticks=7, pid_namespace=3, uid=0, marker="m")
BEGAN_S = 100.0


def seen(presence="gone", end=None, **changes):
    fields = {"token": TOKEN, "presence": presence, "token_at_s": BEGAN_S, "exit": end, "record_at_s": BEGAN_S}
    return Seen(**{**fields, **changes})


def ended(code, **changes):
    fields = {"code": code, "signal": code - 128 if code and code > 128 else None, "at_s": 120.0, "stop": False}
    return ExitRecord(**{**fields, **changes})


def state_of(found, *events):
    state = judge(RUN, Told(events), found, 200.0)
    return state.state, state.detail


STARTED = Started(at_s=101.0, job="train", pid=43, device="cpu")


def test_a_living_process_that_has_not_spoken_is_starting_and_then_running():
    assert state_of(seen("alive")) == ("starting", "")
    assert state_of(seen("alive"), STARTED) == ("running", "")


def test_the_end_of_the_attempt_before_is_not_the_end_of_this_one():
    before = Stopped(at_s=BEGAN_S - 5, reason="asked to")
    assert state_of(seen("alive"), before) == ("running", "")
    assert state_of(seen("gone"), before)[0] == "ended without a word"


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (Finished(at_s=110.0), ("finished", "")),
        (Stopped(at_s=110.0, reason="asked to stop by me"), ("stopped", "asked to stop by me")),
        (Failed(at_s=110.0, error="X", message="no room", exit_code=4), ("failed", "no room")),
    ],
)
def test_the_last_event_tells_more_than_the_exit_code(event, expected):
    assert state_of(seen("gone", ended(143)), STARTED, event) == expected


@pytest.mark.parametrize(
    ("end", "state", "words"),
    [
        (ended(0), "finished", ""),
        (ended(0, stop=True), "stopped", "when asked"),
        (ended(9), "failed", "exit code 9"),
        (ended(137), "killed", "SIGKILL): by somebody, or for want of memory"),
        (ended(137, oom_kills=1), "killed", "out-of-memory killer was at work"),
        (ended(139), "killed", "SIGSEGV"),
        (ended(137, stop=True), "stopped", "SIGKILL), and asked to stop"),
        (ended(137, stop=True, killed=True), "stopped", "killed after its grace"),
        (ended(None, stop=True), "stopped", "how it ended is not known"),
    ],
)
def test_without_a_last_event_the_exit_record_tells(end, state, words):
    found, detail = state_of(seen("gone", end), STARTED)
    assert found == state
    assert words in detail


def test_a_record_of_the_end_wins_over_a_process_that_seems_to_be_there():
    assert state_of(seen("alive", ended(9)), STARTED)[0] == "failed"


def test_a_job_whose_supervisor_was_killed_is_still_running():
    state, detail = state_of(seen("gone", living=(43, 44)), STARTED)
    assert state == "running"
    assert "process 43, 44 goes on without" in detail


def test_another_boot_and_another_namespace_are_said():
    assert state_of(seen("another boot"), STARTED)[0] == "lost to reboot"
    assert state_of(seen("another namespace"), STARTED)[0] == "elsewhere"


def test_a_start_without_a_process_is_starting_for_a_while_only():
    found = Seen(None, None, None, record_at_s=200.0 - START_S + 1)
    assert state_of(found)[0] == "starting"
    assert state_of(Seen(None, None, None, record_at_s=200.0 - START_S - 1))[0] == "ended without a word"


def test_what_was_said_before_this_attempt_is_not_its_end_whatever_the_clock_says():
    told = Told([STARTED, Stopped(at_s=5000.0, reason="before the clock stepped back")])
    told.begin_attempt()
    found = judge(RUN, told, seen("alive", is_supervised=True), 200.0)
    assert (found.state, found.detail) == ("starting", "")
    told.add(STARTED)
    assert judge(RUN, told, seen("alive", is_supervised=True), 200.0).state == "running"


def test_a_run_whose_supervisor_is_at_work_goes_on_though_its_job_failed():
    failed = Failed(at_s=110.0, error="X", message="no room", exit_code=4)
    state, detail = state_of(seen("alive", is_supervised=True), STARTED, failed)
    assert (state, detail) == ("running", "its job failed (no room), and its supervisor is at work")
