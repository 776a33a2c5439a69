"""What an earlier relay left on a target, and what may be put there. The agent has no operator but the test."""

import fcntl
import json
import os

import pytest

from dflashctl_remote.relay.agent import Line, Refused
from dflashctl_remote.relay.keeper import Keeper
from dflashctl_remote.relay.received import lists, note_received, prune, received
from dflashctl_remote.relay.writer import Writer


@pytest.fixture
def keeper(tmp_path):
    answers = os.open(tmp_path / "answers", os.O_CREAT | os.O_RDWR)
    made = Keeper(Line(-1, answers))
    yield made
    made.end()
    os.close(answers)


def asked(tmp_path, *files, replace=False, **more):
    rows = [[path, size, 0o644, 10**18] for path, size in files]
    fields = {"dirs": [], "links": [], "texts": {}, "need_bytes": 0, "about": {}, **more}
    return {"dest": str(tmp_path / "new/dest"), "replace": replace, "files": rows, **fields}


def left_behind(tmp_path, journal):
    part = tmp_path / "new/.dest.relay-part"
    (part / "tree/gone").mkdir(parents=True)
    (part / "tree/a").write_text("12")
    (part / "tree/a").chmod(0o400)
    (part / "tree/gone/b").write_text("3")
    (part / "tree/c").symlink_to("gone")
    (part / "journal").write_text(journal)
    return part


def this_boot():
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def test_only_what_is_wanted_is_left_of_an_earlier_relay(keeper, tmp_path):
    part = left_behind(tmp_path, f"boot {this_boot()}\nkey1\nkey2\nha")
    opened = keeper.open(asked(tmp_path, ("a", 2), ("c/d", 4)))
    assert opened["done"] == ["key1", "key2"]
    assert sorted(str(path.relative_to(part / "tree")) for path in (part / "tree").rglob("*")) == ["a", "c", "c/d"]
    assert (part / "journal").read_text() == f"boot {this_boot()}\nkey1\nkey2\n"


def test_after_a_fall_of_the_machine_only_what_was_synced_counts(keeper, tmp_path):
    before = "boot of another\nkey1\n"
    part = left_behind(tmp_path, f"{before}key2\nsynced {len(before)}\nkey3\n")
    assert keeper.open(asked(tmp_path, ("a", 2)))["done"] == ["key1"]
    kept = f"boot {this_boot()}\nkey1\n"
    # And so it stays, should it fall again at once.
    assert (part / "journal").read_text() == f"{kept}synced {len(kept)}\n"


def test_chunks_that_are_forgotten_are_not_done(keeper, tmp_path):
    left_behind(tmp_path, f"boot {this_boot()}\nkey1\nkey2\n")
    keeper.open(asked(tmp_path, ("a", 2)))
    keeper.forget({"key2"})
    assert keeper.open(asked(tmp_path, ("a", 2)))["done"] == ["key1"]


@pytest.mark.parametrize(
    "more",
    [
        {"links": [["a", "b"]]},
        {"links": [["l", "../../x"]]},
        {"links": [["l", "/etc"]]},
        {"links": [["d", "e"]], "dirs": ["d/below"]},
        {"dirs": ["../x"]},
        {"dirs": ["a/x"]},
        {"dirs": ["a"]},
        {"texts": {"a": ""}},
        {"texts": {"a/b": ""}},
    ],
)
def test_a_tree_that_could_only_be_meant_to_get_out_is_refused(keeper, tmp_path, more):
    with pytest.raises(Refused) as refused:
        keeper.open(asked(tmp_path, ("a", 2), **more))
    assert refused.value.kind in ("path", "link")
    assert not (tmp_path / "new").exists()


def test_what_is_there_by_the_time_of_publishing_is_not_replaced(keeper, tmp_path):
    keeper.open(asked(tmp_path, ("a", 0)))
    (tmp_path / "new/dest").write_text("mine")
    with pytest.raises(Refused, match="is there already"):
        keeper.publish({"texts": {}, "files": [], "links": [], "only": "", "workdir": "", "about": {}})
    assert (tmp_path / "new/dest").read_text() == "mine"


def test_a_folder_takes_the_place_of_a_file_at_once(keeper, tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new/dest").write_text("old")
    keeper.open(asked(tmp_path, ("a", 3), replace=True))
    rows = [["a", 3, 0o600, 10**18]]
    keeper.publish(
        {"texts": {"m": "text"}, "files": rows, "links": [["l", "a"]], "only": "", "workdir": "", "about": {}}
    )
    assert sorted(os.listdir(tmp_path / "new/dest")) == ["a", "l", "m"]
    assert os.listdir(tmp_path / "new") == ["dest"]


def test_a_disk_without_room_is_left_as_it_was(keeper, tmp_path):
    with pytest.raises(Refused, match="are still to come") as refused:
        keeper.open(asked(tmp_path, ("a", 1 << 60), need_bytes=1 << 60))
    assert refused.value.kind == "space"
    assert not (tmp_path / "new").exists()


def test_the_oldest_that_a_relay_brought_go_first_by_number(tmp_path):
    place = tmp_path / "runs/r1/checkpoints"
    names = ["step-9", "step-10", "step-100"]
    for name in names:
        (place / name).mkdir(parents=True)
    (tmp_path / "relay").mkdir()
    lines = [json.dumps({"dest": str(place / name)}) + "\n" for name in names]
    (tmp_path / "relay/received.jsonl").write_text("".join(lines))
    assert prune(str(tmp_path), "r1", 2, set()) == ["step-9"]
    assert sorted(os.listdir(place)) == ["step-10", "step-100"]


def test_a_writer_of_an_earlier_try_comes_too_late(keeper, tmp_path):
    earlier = keeper.open(asked(tmp_path, ("a", 2)))["part"]
    now = keeper.open(asked(tmp_path, ("a", 2)))["part"]
    with pytest.raises(FileNotFoundError):
        Writer(keeper.line).answer({"op": "open"}, {"part": earlier, "files": ["a"]})
    writer = Writer(keeper.line)
    writer.answer({"op": "open"}, {"part": now, "files": ["a"]})
    os.close(writer.writers)
    keeper.wait_for_writers()
    # Verified by now: neither a new one nor one that has still a file to open.
    with pytest.raises(FileNotFoundError):
        Writer(keeper.line).answer({"op": "open"}, {"part": now, "files": ["a"]})
    with pytest.raises(FileNotFoundError):
        writer.descriptor(0)
    os.close(writer.journal)


def test_a_file_system_without_locks_is_said_to_have_none(keeper, tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(Refused, match="locks no files"):
        keeper.open(asked(tmp_path, ("a", 2)))


def test_what_a_full_disk_has_cut_off_hides_nothing_else(tmp_path):
    note_received(str(tmp_path), {"dest": "/a"})
    with (tmp_path / "relay/received.jsonl").open("a") as file:
        file.write('{"dest": "/cu')
    note_received(str(tmp_path), {"dest": "/b"})
    note_received(str(tmp_path), {"dest": "/c"})
    assert [told["dest"] for told in received(str(tmp_path))] == ["/a", "/c"]


def test_a_relay_that_ends_while_they_are_listed_is_not_unfinished(tmp_path):
    (tmp_path / "runs/r/checkpoints/.step-1.relay-part").mkdir(parents=True)
    assert lists(str(tmp_path)) == {"unfinished": [], "received": []}
