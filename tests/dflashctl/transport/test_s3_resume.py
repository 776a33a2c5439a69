import hashlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dflashctl.errors import ArtifactError, HostUnreachable
from dflashctl.transport.s3_sink import UploadLost
from dflashctl.transport.stores import StoredFile
from s3_proxy import error
from s3_servers import BUCKET, ENV

MIB = 2**20
LAB = Path(__file__).parents[2] / "lab"
CHILD = """
import os, random, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from s3_proxy import error
from s3_servers import BUCKET, Store
from dflashctl.transport.s3_sink import S3Sink
from dflashctl.transport.stores import StoredFile
_, _, kind, endpoint, prefix, state, size = sys.argv
data = random.Random(0).randbytes(int(size))
sink = S3Sink(Store(kind, endpoint).client(), BUCKET, prefix, "s3://lab/there", state=Path(state))
file = StoredFile("big", len(data), "v1")
sink.begin((file,))
step = sink.part_bytes(file.size_bytes)
for number in range(-(-len(data) // step)):
    sink.write(file, number, data[number * step:(number + 1) * step])
"""


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def begun(sink, data, path="big", version="v1", parts=()):
    file = StoredFile(path, len(data), version)
    there = sink.begin((file,))[path]
    step = sink.part_bytes(len(data))
    for number in parts:
        sink.write(file, number, data[number * step : (number + 1) * step])
    return file, there


def test_after_kill_9_only_what_was_under_way_is_sent_again(
    store, sink, objects, noise, send, proxy_before, prefix, tmp_path
):
    data = noise(36 * MIB)
    is_at_fourth, may_go_on = threading.Event(), threading.Event()

    def before(request):
        if request.part == 4 and not may_go_on.is_set():
            is_at_fourth.set()
            assert may_go_on.wait(60)

    proxy = proxy_before(store, before=before)
    argv = [sys.executable, "-c", CHILD, str(LAB), store.kind, proxy.endpoint, prefix, str(tmp_path / "state")]
    child = subprocess.Popen([*argv, str(len(data))], env={**os.environ, **ENV})
    try:
        assert is_at_fourth.wait(60)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        may_go_on.set()
    there = send(sink(store, proxy.endpoint), {"big": data})
    assert there["big"] >= {0, 1, 2}
    counts = {part: proxy.parts().count(part) for part in range(1, 6)}
    assert [counts[part] for part in (1, 2, 3, 5)] == [1, 1, 1, 1] and counts[4] <= 2
    assert objects(store).get("big") == data and objects(store).uploads() == []


def test_what_was_sent_is_kept_when_a_try_ends_badly(store, sink, noise):
    data = noise(20 * MIB)
    first = sink(store)
    begun(first, data, parts=(0, 2))
    first.close()
    assert begun(sink(store), data)[1] == {0, 2}


def test_a_part_that_is_there_is_not_sent_again_though_it_is_written(store, sink, noise, proxy_before):
    data, proxy = noise(12 * MIB), proxy_before(store)
    first = sink(store, proxy.endpoint)
    begun(first, data, parts=(0,))
    first.close()
    begun(sink(store, proxy.endpoint), data, parts=(0, 1))
    assert proxy.parts() == [1, 2]


def test_parts_of_another_version_are_dropped(store, sink, objects, noise):
    first, at = sink(store), objects(store)
    begun(first, noise(12 * MIB), parts=(0,))
    first.close()
    assert at.uploads() == ["big"]
    assert begun(sink(store), noise(12 * MIB), version="v2")[1] == frozenset()
    assert at.uploads() == []


def test_an_upload_that_the_store_dropped_begins_anew(store, sink, objects, noise, prefix):
    data, at = noise(12 * MIB), objects(store)
    first = sink(store)
    begun(first, data, parts=(0,))
    first.close()
    (upload,) = at.client.list_multipart_uploads(Bucket=BUCKET, Prefix=prefix)["Uploads"]
    at.client.abort_multipart_upload(Bucket=BUCKET, Key=upload["Key"], UploadId=upload["UploadId"])
    second = sink(store)
    file, there = begun(second, data, parts=(0, 1))
    assert there == frozenset()
    second.finish({file.path: sha256(data)})
    assert at.get("big") == data


def test_an_upload_dropped_while_it_is_written_is_told_and_can_be_begun_again(store, sink, objects, noise, prefix):
    data, at, writer = noise(12 * MIB), objects(store), sink(store)
    file, _ = begun(writer, data, parts=(0,))
    (upload,) = at.client.list_multipart_uploads(Bucket=BUCKET, Prefix=prefix)["Uploads"]
    at.client.abort_multipart_upload(Bucket=BUCKET, Key=upload["Key"], UploadId=upload["UploadId"])
    for _ in range(2):
        with pytest.raises(UploadLost, match="dropped what was sent"):
            writer.write(file, 1, data[8 * MIB :])
    begun(writer, data, parts=(0, 1))
    writer.finish({"big": sha256(data)})
    assert at.get("big") == data


def test_an_upload_dropped_before_it_is_put_together_is_told_and_harms_no_older_object(
    store, sink, objects, noise, prefix
):
    data, at, writer = noise(12 * MIB), objects(store), sink(store)
    at.put("big", b"older")
    begun(writer, data, parts=(0, 1))
    (upload,) = at.client.list_multipart_uploads(Bucket=BUCKET, Prefix=prefix)["Uploads"]
    at.client.abort_multipart_upload(Bucket=BUCKET, Key=upload["Key"], UploadId=upload["UploadId"])
    with pytest.raises(UploadLost):
        writer.finish({"big": sha256(data)})
    assert at.get("big") == b"older"
    assert begun(writer, data)[1] == frozenset()


def test_an_object_put_together_before_the_process_ended_is_not_sent_again(strict, sink, noise, proxy_before):
    data, proxy = noise(12 * MIB), proxy_before(strict)
    first = sink(strict, proxy.endpoint, max_attempts=1)
    file, _ = begun(first, data, parts=(0, 1))
    # What follows on putting together is to look at the object.
    proxy.before = lambda request: error(503, "SlowDown") if request.method == "HEAD" else None
    with pytest.raises(HostUnreachable, match="slow down"):
        first.finish({file.path: sha256(data)})
    first.close()
    proxy.before = lambda request: None
    second = sink(strict, proxy.endpoint)
    assert begun(second, data)[1] == {0, 1}
    second.finish({file.path: sha256(data)})
    assert proxy.parts() == [1, 2]


@pytest.mark.parametrize("known", [True, False])
def test_a_complete_tree_is_not_sent_again_if_its_sha256s_are_known(store, sink, noise, send, proxy_before, known):
    files = {"big": noise(12 * MIB), "small": b"abc", "none": b"", "manifest.json": b"{}"}
    send(sink(store), files, known=known)
    proxy = proxy_before(store)
    there = send(sink(store, proxy.endpoint), files, known=True, version="of another source")
    assert {path: len(parts) for path, parts in there.items()} == {"big": 2, "small": 1, "none": 1, "manifest.json": 1}
    assert {request.method for request in proxy.requests} <= {"GET", "HEAD"}


def test_an_object_of_the_same_size_and_another_content_is_sent_again(store, sink, objects, send):
    at = objects(store)
    at.put("small", b"xyz", Metadata={"sha256": sha256(b"xyz")})
    send(sink(store), {"small": b"abc"}, known=True)
    assert at.get("small") == b"abc"


def test_small_files_of_an_earlier_try_are_kept_unless_replaced(store, sink, objects):
    first, at = sink(store), objects(store)
    for path in "ab":
        first.begin((StoredFile("a", 3, "v1"), StoredFile("b", 3, "v1")))
        first.write(StoredFile(path, 3, "v1"), 0, b"abc")
    first.close()
    at.put("b", b"xyz")
    there = sink(store).begin((StoredFile("a", 3, "v1"), StoredFile("b", 3, "v1")))
    assert there == {"a": frozenset({0}), "b": frozenset()}


def test_abort_drops_what_was_sent(store, sink, objects, noise):
    data, at = noise(12 * MIB), objects(store)
    first = sink(store)
    file, _ = begun(first, data, parts=(0,))
    first.close()
    second = sink(store)
    second.abort((file,))
    assert at.uploads() == [] and begun(second, data)[1] == frozenset()


def test_a_torn_line_in_the_journal_is_passed_over(store, sink, noise, tmp_path):
    data = noise(12 * MIB)
    first = sink(store)
    begun(first, data, parts=(0,))
    first.close()
    (journal,) = (tmp_path / "state").rglob("*.jsonl")
    journal.write_bytes(journal.read_bytes() + b'{"sent": "big", "par')
    second = sink(store)
    _, there = begun(second, data, parts=(1,))
    assert there == {0}
    second.close()
    assert begun(sink(store), data)[1] == {0, 1}


def test_the_journal_holds_no_keys_and_is_for_nobody_else_to_read(strict, sink, noise, tmp_path):
    begun(sink(strict), noise(12 * MIB), parts=(0,))
    (journal,) = (tmp_path / "state").rglob("*.jsonl")
    assert not [value for value in ENV.values() if value in journal.read_text()]
    assert journal.parent.stat().st_mode & 0o077 == 0


def test_a_finished_tree_leaves_no_journal(store, sink, send, tmp_path):
    send(sink(store), {"small": b"abc"})
    assert list((tmp_path / "state").rglob("*.jsonl")) == []


def test_a_file_that_changed_after_it_was_put_is_not_called_complete(store, sink, objects, send):
    writer = sink(store)
    file = StoredFile("small", 3, "v1")
    writer.begin((file,))
    writer.write(file, 0, b"abc")
    with pytest.raises(ArtifactError, match="sha256 was to be"):
        writer.finish({"small": sha256(b"xyz")})
    writer.close()
    assert sink(store).begin((file,)) == {"small": frozenset()}
