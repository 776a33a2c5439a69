"""What a source tells of itself: whatever its manifest says, nothing outside the folder is looked at."""

import json
import os
import signal

import pytest

from dflashctl_remote.relay import chief
from dflashctl_remote.relay.agent import Refused, leads_out
from dflashctl_remote.relay.chief import find, hash_files, scan, where


def checkpoint(folder, *entries, text=None):
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    files = [{"path": path, "size_bytes": size, "sha256": ""} for path, size in entries]
    (folder / "manifest.json").write_text(json.dumps({"files": files}) if text is None else text)
    return str(folder)


def refusal(path, *, is_checkpoint=True):
    with pytest.raises(Refused) as refused:
        scan(path, is_checkpoint, True)
    return refused.value.kind


@pytest.mark.parametrize(
    ("path", "kind"),
    [("../outside", "path"), ("/etc/passwd", "path"), ("a//b", "path"), ("./config.json", "path"), ("", "path"),
     ("ev\0il", "path"), ("ev\ud800il", "path"), ("no such file", "corrupt"), ("linked/outside", "corrupt"),
     ("link", "corrupt"), ("x" * 5000, "corrupt")],
)  # fmt: skip
def test_a_manifest_names_only_files_of_its_folder(tmp_path, path, kind):
    place = checkpoint(tmp_path / "step", (path, 2))
    (tmp_path / "outside").write_text("12")
    (tmp_path / "step/linked").symlink_to(tmp_path)
    (tmp_path / "step/link").symlink_to("config.json")
    assert refusal(place) == kind


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"files": 1}', '{"files": [{"path": "config.json", "size_bytes": Infinity}]}', "[" * 100_000],
)
def test_what_is_no_manifest_is_corrupt(tmp_path, text):
    assert refusal(checkpoint(tmp_path / "step", text=text)) == "corrupt"


def test_a_file_of_another_size_is_corrupt(tmp_path):
    assert refusal(checkpoint(tmp_path / "step", ("config.json", 3))) == "corrupt"


def test_a_folder_without_a_manifest_is_incomplete(tmp_path):
    assert refusal(str(tmp_path)) == "incomplete"


@pytest.mark.parametrize(
    ("path", "said", "is_out"),
    [("a", "b", False), ("d/a", "../b", False), ("a", "..", True), ("a", "../x", True), ("d/a", "../../x", True),
     ("a", "/etc", True), ("a", "x/../../y", True), ("a", "..x", False), ("a", "x\0y", True)],
)  # fmt: skip
def test_links_that_lead_out_by_their_letters(path, said, is_out):
    assert leads_out(path, said) is is_out


def test_a_link_that_leads_out_by_way_of_another_is_refused(tmp_path):
    (tmp_path / "t/top").mkdir(parents=True)
    (tmp_path / "t/p/q").mkdir(parents=True)
    os.symlink("../../top", tmp_path / "t/p/q/s")
    assert len(scan(str(tmp_path / "t"), False, False)["links"]) == 1
    os.symlink("p/q/s/../../x", tmp_path / "t/out")
    assert refusal(str(tmp_path / "t"), is_checkpoint=False) == "link"


def test_a_file_that_is_gone_is_missing_and_not_an_error_of_the_disk(tmp_path):
    with pytest.raises(Refused) as refused:
        hash_files(str(tmp_path), ["gone"])
    assert refused.value.kind == "missing"


def test_runs_are_told_newest_first_with_their_complete_checkpoints(tmp_path):
    for number, name in enumerate(("old", "new", "empty")):
        (tmp_path / "runs" / name / "checkpoints").mkdir(parents=True)
        if name != "empty":
            place = checkpoint(tmp_path / "runs" / name / "checkpoints/step-00000005")
            os.utime(f"{place}/manifest.json", (number, number))
    (tmp_path / "runs/new/checkpoints/step-00000009").mkdir()
    (tmp_path / "runs/new/checkpoints/step-\u00b2").mkdir()
    told = find(str(tmp_path), None)
    assert [name for name, _ in told["runs"]] == ["new", "old"]
    assert (told["run"], [step for step, _, _ in told["steps"]]) == ("new", [5])
    assert told["unfinished"] == [9]


def test_whatever_is_called_a_manifest_in_another_tree_is_no_hindrance(tmp_path, monkeypatch):
    (tmp_path / "a/manifest.json").mkdir(parents=True)
    assert scan(str(tmp_path / "a"), False, False)["manifest"] is None
    (tmp_path / "b").mkdir()
    (tmp_path / "b/manifest.json").write_text("12345")
    assert scan(str(tmp_path / "b"), False, False)["manifest"] == "12345"
    monkeypatch.setattr(chief, "MOST_MANIFEST_BYTES", 4)
    assert scan(str(tmp_path / "b"), False, False)["manifest"] is None


def test_folders_in_folders_without_end_are_refused_by_a_word(tmp_path):
    os.makedirs(tmp_path / ("d/" * 180))
    assert len(scan(str(tmp_path / "d"), False, False)["dirs"]) == 179
    os.makedirs(tmp_path / ("d/" * 220))
    assert refusal(str(tmp_path / "d"), is_checkpoint=False) == "kind"


def test_where_a_path_is_tells_what_is_in_what(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a/b")
    (own, above, *_) = where(str(tmp_path / "a/b"), is_followed=True)
    assert where(str(tmp_path / "link/new/er"), is_followed=False)[:4] == [None, None, own, above]
    assert where(str(tmp_path / "link"), is_followed=True)[0] == own
    assert where(str(tmp_path / "link"), is_followed=False)[0] != own


def test_only_an_agent_ends_by_itself(tmp_path):
    """Whoever else calls these functions is not ended by an alarm that nobody stops."""
    (tmp_path / "file").write_bytes(b"1")
    hash_files(str(tmp_path), ["file"])
    assert signal.alarm(0) == 0
