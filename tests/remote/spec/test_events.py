from contextlib import closing

import pytest

from dflashctl_remote.spec.events import RANK_LOST, AmongOthers, EventLog, Failed, LastWords, Notice, parse_event


def test_events_read_back_as_they_were_written(tmp_path):
    event = Notice(message="two\nlines")
    with closing(EventLog(tmp_path / "events.jsonl")) as log:
        log.emit(event)
    assert parse_event((tmp_path / "events.jsonl").read_bytes()) == event


def test_log_goes_on_after_what_is_there(tmp_path):
    path = tmp_path / "events.jsonl"
    for message in ("one", "two"):
        with closing(EventLog(path)) as log:
            log.emit(Notice(message=message))
    assert [parse_event(line).message for line in path.read_text().splitlines()] == ["one", "two"]


def test_half_a_line_of_a_killed_process_becomes_blank_and_moves_nothing(tmp_path):
    path = tmp_path / "events.jsonl"
    whole = Notice(message="one").model_dump_json() + "\n"
    path.write_text(whole + '{"at_s": 1, "ki')
    size_bytes = path.stat().st_size
    with closing(EventLog(path)) as log:
        log.emit(Notice(message="two"))
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    assert [parse_event(line).message for line in lines] == ["one", "two"]
    assert path.read_bytes()[size_bytes:].startswith(b"\n{")


@pytest.mark.parametrize("log", [AmongOthers, LastWords])
def test_the_loss_of_another_process_is_not_told_after_what_that_one_said(tmp_path, log):
    path = tmp_path / "events.jsonl"
    cause = Failed(error="TrainingFailed", message="the disk is full", exit_code=4)
    lost = Failed(error=RANK_LOST, message="another process is gone", exit_code=4)
    with closing(EventLog(path)) as before:
        before.emit(cause)  # of an earlier attempt: says nothing of this one
    with closing(log(path)) as mine, closing(LastWords(path)) as other:
        mine.emit(lost)
        other.emit(cause)
        mine.emit(lost)
    assert [parse_event(line) for line in path.read_bytes().splitlines()] == [cause, lost, cause]
