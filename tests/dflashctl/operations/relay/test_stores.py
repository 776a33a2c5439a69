import pytest

from dflashctl.operations.relay.progress import Progress
from dflashctl.operations.relay.stores import begin, sha256s_in
from dflashctl.operations.relay.tree import SourceFile, Tree


def test_a_manifest_of_ours_tells_sha256s():
    text = '{"files": [{"path": "a", "sha256": "00", "size_bytes": 1}, {"path": "b/c", "sha256": "11"}], "about": {}}'
    assert sha256s_in(text) == {"a": "00", "b/c": "11"}


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"name": "a web app"}', '{"files": ["a"]}', '{"files": 5}'])
def test_what_others_call_a_manifest_is_none(text):
    assert sha256s_in(text) is None


def test_what_was_there_before_the_first_byte_stays_what_was_there():
    progress, tree = Progress(), Tree("/x", False, (SourceFile("a", 100, 0, "v", 0o644),))
    begin(progress, tree, 40, 6)
    progress.add(sent_bytes=30)
    begin(progress, tree, 70, 3)
    assert (progress.kept_bytes, progress.done_bytes, progress.total_bytes) == (40, 70, 100)
