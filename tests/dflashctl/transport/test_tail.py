import pytest

from dflashctl.errors import ArtifactError
from dflashctl.transport.tail import EventTail, find_last_event, read_across, read_events
from dflashctl_remote.spec.events import Finished, Notice, Started


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


def test_the_newest_of_a_kind_is_found_from_the_end(tmp_path):
    path = tmp_path / "events.jsonl"
    one, two = (Started(job="train", pid=pid, device="cpu") for pid in (1, 2))
    # Names the kind, and is of another one.
    other = Finished(about={"kind": "started"})
    path.write_text("".join(f"{event.model_dump_json()}\n" for event in (one, two, other)) + line("last"))
    assert find_last_event(path, "started") == two
    assert find_last_event(path, "failed") is None


def test_half_a_line_at_the_end_is_not_found(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text(line("one") + line("two")[:-4])
    assert find_last_event(path, "notice").message == "one"


@pytest.mark.parametrize("content", [None, ""])
def test_nothing_is_found_where_nothing_was_written(tmp_path, content):
    path = tmp_path / "events.jsonl"
    if content is not None:
        path.write_text(content)
    assert find_last_event(path, "started") is None
    assert [event for piece in read_across(path, num_pieces=4, piece_bytes=100) for event in piece] == []


def test_a_long_file_is_read_in_pieces_with_both_ends(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text("".join(line(f"{number:05d}") for number in range(1000)))
    pieces = [messages(piece) for piece in read_across(path, num_pieces=5, piece_bytes=1000)]
    assert (len(pieces), pieces[0][0], pieces[-1][-1]) == (5, "00000", "00999")
    assert pieces[2][0].startswith("00")
    assert sum(map(len, pieces)) < 100


def test_a_short_file_is_read_whole(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text(line("one") + line("two"))
    assert [messages(piece) for piece in read_across(path, num_pieces=5, piece_bytes=1000)] == [["one", "two"]]
