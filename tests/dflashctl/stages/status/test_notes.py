import threading

import pytest

from dflashctl.errors import ConfigError
from dflashctl.stages.status.notes import add, finish, notes_if_readable, read_notes


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
    with pytest.raises(ConfigError, match="`goal` needs a text"):
        add(path, "goal", text, who="a", now_s=1.0)
    assert not path.exists()


@pytest.mark.parametrize("text", ["red \x1b[31m", "\x07", "half a \udce9"])
def test_control_codes_are_refused(path, text):
    with pytest.raises(ConfigError, match="control code U"):
        add(path, "goal", text, who="a", now_s=1.0)
    assert not path.exists()


def test_a_note_may_be_in_any_script(path):
    text = "tau \u2265 6 \u2014 \u76ee\u6a19 \U0001f468\u200d\U0001f4bb"
    assert add(path, "goal", text, who="a", now_s=1.0).text == text
    assert read_notes(path).notes[0].text == text


def test_an_end_may_stand_before_its_note(path):
    note = add(path, "next", "relay", who="a", now_s=1.0)
    finish(path, "next", note.id, who="b", now_s=2.0)
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    assert read_notes(path).notes[0].done_by == "b"


def test_notes_that_cannot_be_read_hide_nothing_else(path):
    path.mkdir(parents=True)
    assert "Is a directory" in notes_if_readable(path).problem


def test_an_id_of_another_kind_is_not_found(path):
    note = add(path, "goal", "tau", who="a", now_s=1.0)
    with pytest.raises(ConfigError, match=f"no open next '{note.id}'") as caught:
        finish(path, "next", note.id, who="a", now_s=2.0)
    assert caught.value.hint == f"it is a goal: dflashctl note goal done {note.id}"


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
    with pytest.raises(ConfigError, match="no open goal") as caught:
        finish(path, "goal", note.id, who="b", now_s=3.0)
    assert "ended by a already" in caught.value.hint


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
