import pytest

from dflashctl.errors import ArtifactError
from dflashctl.transport.tail import EventTail, read_events
from dflashctl_remote.spec.events import Notice


def line(message):
    return Notice(message=message).model_dump_json() + "\n"


def messages(events):
    return [event.message for event in events]


def test_half_a_line_waits_for_its_end(tmp_path):
    path = tmp_path / "events.jsonl"
    second = line("two")
    path.write_text(line("one") + second[:10])
    tail = EventTail(path, lambda: None)
    assert messages(tail.follow(lambda: True)) == ["one"]
    with path.open("a") as file:
        file.write(second[10:])
    assert messages(tail.follow(lambda: True)) == ["two"]


def test_iteration_that_breaks_off_loses_nothing(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text(line("one") + line("two") + line("three"))
    tail = EventTail(path, lambda: None)
    assert next(tail.follow(lambda: True)).message == "one"
    assert messages(tail.follow(lambda: True)) == ["two", "three"]


def test_what_is_written_before_the_end_is_not_missed(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text(line("one"))
    answers = iter([False, True])

    def is_over():
        over = next(answers)
        if over:
            with path.open("a") as file:
                file.write(line("last words"))
        return over

    assert messages(EventTail(path, lambda: None).follow(is_over)) == ["one", "last words"]


def test_blank_lines_are_skipped(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text(line("one") + "      \n" + line("two"))
    assert messages(read_events(path)) == ["one", "two"]


def test_no_file_yet_is_no_event(tmp_path):
    assert read_events(tmp_path / "events.jsonl") == []


def test_line_of_another_version_is_named(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"kind": "dance"}\n')
    with pytest.raises(ArtifactError, match="not an event of this version"):
        read_events(path)
