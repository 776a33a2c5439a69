import threading

import pytest

from dflashctl.errors import ConfigError
from dflashctl.stages.status.notes import add, finish, read_notes


@pytest.fixture
def path(tmp_path):
    return tmp_path / "work" / "notes.jsonl"


def test_a_note_is_read_back(path):
    note = add(path, "goal", "tau of 6", who="ann", now_s=7.0)
    assert read_notes(path).notes == (note,)


def test_what_is_done_stays_with_when_and_by_whom(path):
    note = add(path, "next", "relay", who="ann", now_s=1.0)
    finish(path, "next", note.id, who="bob", now_s=2.0)
    notes = read_notes(path)
    assert notes.of("next") == ()
    (ended,) = notes.of("next", with_done=True)
    assert (ended.text, ended.who, ended.done_by, ended.done_at_s) == ("relay", "ann", "bob", 2.0)


def test_line_breaks_become_spaces(path):
    assert add(path, "context", "one\n  two\t three ", who="a", now_s=1.0).text == "one two three"


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_note_is_refused(path, text):
    with pytest.raises(ConfigError, match="a goal needs a text"):
        add(path, "goal", text, who="a", now_s=1.0)
    assert not path.exists()


def test_an_id_of_another_kind_is_not_found(path):
    note = add(path, "goal", "tau", who="a", now_s=1.0)
    with pytest.raises(ConfigError, match=f"no open next {note.id}"):
        finish(path, "next", note.id, who="a", now_s=2.0)


def test_an_unknown_id_names_the_nearest_or_what_is_there(path):
    note = add(path, "goal", "tau", who="a", now_s=1.0)
    with pytest.raises(ConfigError) as caught:
        finish(path, "goal", note.id[:-1] + "x", who="a", now_s=2.0)
    assert caught.value.hint == f"did you mean {note.id}?"
    with pytest.raises(ConfigError) as caught:
        finish(path, "goal", "zzzzzz", who="a", now_s=2.0)
    assert note.id in caught.value.hint


def test_done_twice_is_refused(path):
    note = add(path, "goal", "tau", who="a", now_s=1.0)
    finish(path, "goal", note.id, who="a", now_s=2.0)
    with pytest.raises(ConfigError, match="no open goal"):
        finish(path, "goal", note.id, who="a", now_s=3.0)


def test_half_a_line_of_a_killed_writer_is_told_and_spoils_nothing(path):
    first = add(path, "goal", "one", who="a", now_s=1.0)
    with path.open("a") as file:
        file.write('{"entry":"added","id":"ab')
    second = add(path, "goal", "two", who="a", now_s=2.0)
    notes = read_notes(path)
    assert notes.notes == (first, second)
    assert notes.bad_lines == (2,)


def test_writers_at_once_lose_nothing(path):
    def write(name):
        for number in range(20):
            add(path, "context", f"{name} {number}", who=name, now_s=1.0)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    notes = read_notes(path)
    assert len(notes.notes) == 80
    assert notes.bad_lines == ()
