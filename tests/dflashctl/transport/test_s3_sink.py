import hashlib
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from dflashctl.errors import ArtifactError, ConfigError
from dflashctl.transport.s3_keys import SIDECAR_NAME
from dflashctl.transport.stores import StoredFile
from s3_proxy import Answer

MIB = 2**20
ODD = ["a b.bin", "ünï/ç ødé.txt", "100%+1&=?#.bin", "deep/er/and/deeper", "a'\"<>b", "%2e%2e", " lead"]


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def test_files_of_any_size_arrive(store, sink, objects, noise, send):
    files = {f"{size}.bin": noise(size, seed=size) for size in (0, 1, 5 * MIB, 8 * MIB - 1, 8 * MIB, 12 * MIB + 1)}
    send(sink(store), files)
    at = objects(store)
    assert {path: at.get(path) for path in files} == files


def test_files_of_any_name_arrive(store, sink, objects, send):
    files = {path: path.encode() for path in ODD}
    send(sink(store), files)
    at = objects(store)
    assert at.paths() == sorted(ODD)
    assert {path: at.get(path) for path in files} == files


def test_what_was_sent_is_what_is_read(store, sink, source, noise, send):
    files = {"big": noise(12 * MIB), "small": b"abc", "none": b""}
    send(sink(store), files)
    stored = source(store).files()
    assert {file.path: (file.size_bytes, file.sha256) for file in stored} == {
        path: (len(data), sha256(data)) for path, data in files.items()
    }


@pytest.mark.parametrize("size_bytes", [0, 1, 8 * MIB - 1, 8 * MIB, 80_000 * MIB, 80_001 * MIB, 5 * 2**40])
def test_parts_are_no_smaller_and_no_more_than_a_store_takes(strict, sink, size_bytes):
    step = sink(strict).part_bytes(size_bytes)
    assert step >= 5 * MIB and -(-size_bytes // step) <= 10_000


def test_a_sha256_that_is_known_before_goes_into_the_metadata_and_no_sidecar_is_written(
    store, sink, objects, noise, send
):
    files = {"big": noise(8 * MIB), "small": b"abc"}
    send(sink(store), files, known=True)
    at = objects(store)
    assert at.paths() == ["big", "small"]
    assert {path: at.metadata(path)["sha256"] for path in files} == {path: sha256(files[path]) for path in files}


def test_a_sha256_that_is_not_known_before_goes_into_the_sidecar(store, sink, objects, noise, send):
    data = noise(8 * MIB)
    send(sink(store), {"big": data, "small": b"abc"})
    at = objects(store)
    assert json.loads(at.get(SIDECAR_NAME))["files"]["big"]["sha256"] == sha256(data)
    assert at.metadata("big") == {}


def test_what_the_sidecar_says_is_not_said_of_an_object_that_was_replaced(store, sink, source, objects, noise, send):
    send(sink(store), {"big": noise(8 * MIB), "small": b"abc"})
    objects(store).put("big", b"other")
    assert {file.path: file.sha256 for file in source(store).files()} == {"big": None, "small": sha256(b"abc")}


def test_no_object_is_put_together_and_no_manifest_is_there_before_the_end(store, sink, objects, noise):
    files = {"big": noise(8 * MIB), "manifest.json": b"{}", "deep/manifest.json": b"{ }", "small": b"abc"}
    writer, at = sink(store), objects(store)
    stored = tuple(StoredFile(path, len(data), "v1") for path, data in files.items())
    writer.begin(stored)
    for file in stored:
        writer.write(file, 0, files[file.path])
    assert at.paths() == ["small"]
    writer.finish({path: sha256(data) for path, data in files.items()})
    assert [path for path in at.paths() if path != SIDECAR_NAME] == sorted(files)


def test_the_manifest_of_the_tree_is_put_last(store, sink, noise, send, proxy_before):
    proxy = proxy_before(store)
    files = {"manifest.json": b"{}", "deep/manifest.json": b"{ }", "big": noise(8 * MIB), "small": b"abc"}
    send(sink(store, proxy.endpoint), files)
    ends = [request.target.partition("?")[0] for request in proxy.requests if request.method in ("PUT", "POST")]
    assert ends[-3].endswith(SIDECAR_NAME)
    assert [end.rpartition("%C3%A9/")[2] for end in ends[-2:]] == ["deep/manifest.json", "manifest.json"]


def test_another_tree_takes_the_old_manifest_away_first(store, sink, objects, send):
    send(sink(store), {"a": b"old", "manifest.json": b"{}"})
    writer, at = sink(store), objects(store)
    stored = (StoredFile("a", 3, "v2"), StoredFile("manifest.json", 3, "v2"))
    writer.begin(stored)
    writer.write(stored[1], 0, b"new")
    assert at.get("manifest.json") == b"{}"
    writer.write(stored[0], 0, b"new")
    assert (at.paths(), at.get("a")) == (["a"], b"new")


def test_requests_have_no_chunks_and_no_trailers_and_say_their_md5(store, sink, noise, send, proxy_before):
    proxy = proxy_before(store)
    send(sink(store, proxy.endpoint), {"big": noise(12 * MIB), "small": b"abc"})
    names = {name.lower() for request in proxy.requests for name in request.headers}
    assert not [name for name in names if "checksum" in name or "trailer" in name or "decoded" in name]
    text = json.dumps([request.headers for request in proxy.requests])
    assert "aws-chunked" not in text and "STREAMING" not in text
    assert all("Content-MD5" in request.headers for request in proxy.requests if request.method == "PUT")


def test_a_sha256_that_is_not_the_files_is_refused_before_anything_is_put(store, sink, objects):
    writer = sink(store)
    file = StoredFile("a", 3, "v1", sha256(b"abc"))
    writer.begin((file,))
    with pytest.raises(ArtifactError, match="sha256 was to be"):
        writer.write(file, 0, b"xyz")
    assert objects(store).paths() == []


def test_a_big_file_that_is_not_what_was_announced_becomes_no_object(store, sink, objects, noise):
    writer, at = sink(store), objects(store)
    file = StoredFile("big", 8 * MIB, "v1", "0" * 64)
    writer.begin((file,))
    writer.write(file, 0, noise(8 * MIB))
    with pytest.raises(ArtifactError, match="sha256 was to be"):
        writer.finish({"big": sha256(noise(8 * MIB))})
    assert (at.paths(), at.uploads()) == ([], [])


def test_a_file_of_which_a_part_was_not_sent_is_not_put_together(store, sink, objects, noise):
    writer = sink(store)
    file = StoredFile("big", 12 * MIB, "v1")
    writer.begin((file,))
    writer.write(file, 1, noise(4 * MIB))
    with pytest.raises(ArtifactError, match="not all of its parts"):
        writer.finish({"big": "0" * 64})
    assert objects(store).paths() == []


@pytest.mark.parametrize("path", ["../a", "/a", "a//b", "a/../b", "x" * 1100, "bad\udcff", SIDECAR_NAME])
def test_a_path_that_cannot_be_a_key_is_refused(strict, sink, path):
    with pytest.raises(ConfigError, match="cannot be written"):
        sink(strict).begin((StoredFile(path, 1, "v1"),))


def test_a_file_that_is_a_folder_too_is_refused(strict, sink):
    with pytest.raises(ConfigError, match="a file and a folder"):
        sink(strict).begin((StoredFile("a", 1, "v1"), StoredFile("a/b", 1, "v1")))


def test_a_bucket_that_is_not_there_is_refused_and_not_made(store, sink):
    for _ in range(2):
        writer = sink(store, bucket="no-such-bucket")
        with pytest.raises(ConfigError, match="no such bucket"):
            writer.begin((StoredFile("a", 1, "v1"),))
        writer.close()


def test_two_at_once_to_one_place_are_refused(strict, sink):
    first = sink(strict)
    first.begin((StoredFile("a", 1, "v1"),))
    with pytest.raises(ConfigError, match="another dflashctl"):
        sink(strict).begin((StoredFile("a", 1, "v1"),))


def test_bytes_that_the_store_changed_are_found_and_removed(store, sink, objects, noise, proxy_before):
    """A store that joins parts in the wrong order, or keeps the framing of chunks within the object."""
    proxy = proxy_before(store)
    writer, data, at = sink(store, proxy.endpoint), noise(16 * MIB), objects(store)
    file = StoredFile("big", 16 * MIB, "v1")
    writer.begin((file,))
    writer.write(file, 0, data[: 8 * MIB])
    writer.write(file, 1, data[8 * MIB :])

    def after(request, answer):
        if request.method == "POST" and "uploadId" in request.target:
            at.put("big", data[8 * MIB :] + data[: 8 * MIB])
        return answer

    proxy.after = after
    with pytest.raises(ArtifactError, match="is not what was sent"):
        writer.finish({"big": sha256(data)})
    assert at.paths() == []


def test_an_object_cut_short_in_the_store_is_found(store, sink, objects, proxy_before, send):
    proxy, at = proxy_before(store), objects(store)

    def after(request, answer):
        if request.method == "PUT" and request.target.endswith("small"):
            at.put("small", b"ab")
        return answer

    proxy.after = after
    with pytest.raises(ArtifactError, match="2 bytes, 3 were sent"):
        send(sink(store, proxy.endpoint), {"small": b"abc", "other": b"abcdef"})


def test_a_lost_answer_to_the_last_question_is_no_failure(store, sink, objects, noise, send, proxy_before):
    lost = []

    def after(request, answer):
        if request.method == "POST" and "uploadId" in request.target and not lost:
            lost.append(request)
            return Answer(500, (), b"")
        return answer

    proxy, data = proxy_before(store, after=after), noise(12 * MIB)
    send(sink(store, proxy.endpoint), {"big": data})
    assert lost and objects(store).get("big") == data


def test_parts_may_come_from_several_threads_in_any_order(store, sink, objects, noise, proxy_before):
    data, proxy = noise(36 * MIB), proxy_before(store)
    writer, file = sink(store, proxy.endpoint), StoredFile("big", len(data), "v1", sha256(data))
    writer.begin((file,))
    step = writer.part_bytes(len(data))
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda n: writer.write(file, n, data[n * step : (n + 1) * step]), (4, 2, 0, 3, 1)))
    writer.finish({"big": sha256(data)})
    assert objects(store).get("big") == data
    assert sum(request.method == "POST" and request.target.endswith("?uploads") for request in proxy.requests) == 1


def test_metadata_that_the_store_lost_are_made_up_for_by_the_sidecar(strict, sink, source, noise, send, proxy_before):
    def after(request, answer):
        return answer.changed(headers=tuple(h for h in answer.headers if not h[0].lower().startswith("x-amz-meta")))

    data = noise(12 * MIB)
    send(sink(strict, proxy_before(strict, after=after).endpoint), {"big": data}, known=True)
    (file,) = source(strict).files()
    assert file.sha256 == sha256(data)


def test_what_is_there_and_is_another_is_told_and_left_alone(store, sink, objects, send):
    at = objects(store)
    send(sink(store), {"same": b"same"}, known=True)
    at.put("other", b"old")
    writer = sink(store)
    files = {"same": b"same", "other": b"new", "fresh": b"new"}
    writer.begin(tuple(StoredFile(path, len(data), "v1", sha256(data)) for path, data in files.items()))
    assert writer.occupied == ("other",)
    assert at.get("other") == b"old"
