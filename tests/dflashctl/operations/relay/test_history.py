import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from dflashctl.operations.relay import history
from dflashctl.transport.process import token_of


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "dflashctl" / "relays.jsonl"


def begun(what="path", **changes):
    record = history.begun("path", "a:/x", "b:/y", (what, "a:/x", "b:/y"), ("--encode", "no"))
    return replace(record, **changes)


def test_the_newest_line_of_a_relay_counts():
    record = begun()
    history.note(record)
    history.note(replace(record, outcome="done", total_bytes=7))
    (found,) = history.records()
    assert (found.name, found.outcome, found.total_bytes) == (record.name, "done", 7)
    assert found.arguments == ("path", "a:/x", "b:/y", "--encode", "no")


def test_one_that_this_process_moves_is_moving():
    history.note(begun())
    assert history.records()[0].outcome == "moving"


def test_one_whose_process_is_gone_has_broken_off():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        history.note(begun(process=token_of(process.pid, "")))
        assert history.records()[0].outcome == "moving"
        process.stdin.close()
        process.wait()
    assert history.records()[0].outcome == "broken off"


def test_a_pid_that_is_another_process_by_now_is_not_the_mover():
    mine = token_of(os.getpid(), "")
    history.note(begun(process=mine.model_copy(update={"start_ticks": mine.start_ticks - 1})))
    assert history.records()[0].outcome == "broken off"


def test_what_was_not_finished_goes_on_under_its_name():
    record = begun()
    history.note(replace(record, outcome="interrupted"))
    assert begun().name == record.name
    assert begun("ckpt").name != record.name
    history.note(replace(record, outcome="done"))
    assert begun().name != record.name


def test_two_that_move_the_same_have_each_their_name():
    record = begun()
    history.note(record)
    assert begun().name != record.name


def test_damaged_lines_are_passed_over_and_swallow_no_others(state):
    first = begun()
    history.note(first)
    whole = json.loads(state.read_text())
    bad = [b"\xff\xfe\n", b"null\n", b"[]\n", b"{}\n", b"{\n", b"\n"]
    for key, value in (("what", "ab"), ("name", 5), ("outcome", "flying"), ("process", {"pid": 1}), ("new", 1)):
        bad.append(json.dumps({**whole, "name": "bad", key: value}).encode() + b"\n")
    bad.append(json.dumps({key: value for key, value in whole.items() if key != "how"}).encode() + b"\n")
    bad.append(b'{"name": "cut o')
    state.write_bytes(state.read_bytes() + b"".join(bad))
    second = replace(begun(), name="second")
    history.note(second)
    assert [record.name for record in history.records()] == [first.name, "second"]


def test_a_folder_that_cannot_be_written_to_stops_nothing(state, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/1/no-such")
    history.note(begun())
    assert history.records() == ()


def test_a_history_that_cannot_be_read_is_none(state):
    state.mkdir(parents=True)
    history.note(begun())
    assert history.records() == ()


def test_two_that_write_at_once_lose_no_line():
    def note_many(name):
        for number in range(50):
            # More than fits into one write of a buffered file.
            history.note(begun(name=f"{name}-{number}", text="x" * 9000))

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(note_many, ("a", "b")))
    assert len(history.records()) == 100
