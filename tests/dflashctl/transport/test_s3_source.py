import hashlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from dflashctl.errors import ArtifactError, ConfigError, HostUnreachable
from dflashctl.transport.stores import SourceChanged, StoredFile
from s3_proxy import Answer, error

ODD = ["a b.bin", "ünï/ç ødé.txt", "100%+1&=?#.bin", "deep/er/and/deeper", "a'\"<>b", "%2e%2e", " lead", "tab\there"]
MIB = 2**20


def listing(*objects):
    found = "".join(
        f"<Contents><Key>{key}</Key><Size>{size}</Size><ETag>&quot;ab&quot;</ETag></Contents>" for key, size in objects
    )
    body = f"<?xml version='1.0'?><ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>"
    return Answer(200, (("Content-Type", "application/xml"),), body.encode())


def lists(*objects):
    """A rule for a proxy: whatever is listed, these are there."""
    return lambda request: listing(*objects) if "list-type=2" in request.target else None


def is_ranged(request):
    return request.method == "GET" and "Range" in request.headers


def spoiling(times, **changes):
    """A rule for a proxy: so many answers to ranged reads are changed."""
    left = [times]

    def after(request, answer):
        if not is_ranged(request) or not left[0]:
            return answer
        left[0] -= 1
        return answer.changed(**changes)

    return after


def test_what_was_put_is_listed_in_order_and_read(store, source, objects):
    put = objects(store)
    content = {path: f"content of {path}".encode() for path in ODD}
    for path, data in content.items():
        put.put(path, data)
    reader = source(store)
    files = reader.files()
    assert [file.path for file in files] == sorted(ODD)
    assert {file.path: reader.read(file, 0, file.size_bytes) for file in files} == content


def test_a_backslash_is_a_letter(sloppy, source, objects):
    # seaweedfs makes slashes of them.
    objects(sloppy).put("a\\..\\b", b"")
    assert [file.path for file in source(sloppy).files()] == ["a\\..\\b"]


@pytest.mark.parametrize("size_bytes", [0, 1, 5 * MIB, 12 * MIB + 3])
def test_any_size_is_read_in_ranges(store, source, objects, noise, size_bytes):
    data = noise(size_bytes)
    objects(store).put("a", data)
    reader = source(store)
    (file,) = reader.files()
    step = 3 * MIB
    got = [reader.read(file, at, min(step, size_bytes - at)) for at in range(0, max(1, size_bytes), step)]
    assert b"".join(got) == data


def test_more_than_a_page_is_listed(store, source, objects):
    put = objects(store)
    names = [f"{number:04}" for number in range(1005)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: put.put(name, b""), names))
    assert [file.path for file in source(store).files()] == names


def test_an_object_of_exactly_that_key_is_one_file(store, source, objects, prefix):
    objects(store).put("x/model.bin", b"abc")
    reader = source(store, at=f"{prefix}/x/model.bin")
    (file,) = reader.files()
    assert (file.path, reader.read(file, 1, 2)) == ("model.bin", b"bc")


def test_a_slash_at_the_end_means_the_folder(store, source, objects, prefix):
    objects(store).put("x/model.bin", b"abc")
    assert [file.path for file in source(store, at=f"{prefix}/x/").files()] == ["model.bin"]
    assert [file.path for file in source(store, at=f"{prefix}/x").files()] == ["model.bin"]


def test_a_prefix_is_no_part_of_a_name(store, source, objects, prefix):
    put = objects(store)
    put.put("step-3/a", b"")
    put.put("step-30/a", b"")
    put.put("step-3.txt", b"")
    assert [file.path for file in source(store, at=f"{prefix}/step-3").files()] == ["a"]


def test_nothing_there_is_refused(store, source):
    with pytest.raises(ArtifactError, match="there is nothing"):
        source(store).files()


def test_markers_of_folders_are_no_files(strict, source, proxy_before):
    proxy = proxy_before(strict, before=lists(("top/", 0), ("top/sub/", 0), ("top/sub/a", 1)))
    assert [file.path for file in source_without_heads(source, proxy, strict).files()] == ["sub/a"]


def source_without_heads(source, proxy, store):
    """Objects that only a spoiled list has: asked for by HEAD, each is as it was listed."""
    rule = proxy.before
    head = Answer(200, (("ETag", '"ab"'), ("Content-Length", "1")), b"")
    proxy.before = lambda request: head if request.method == "HEAD" else rule(request)
    return source(store, proxy.endpoint, at="top/")


@pytest.mark.parametrize(
    "key", ["top/../../etc/passwd", "top//a", "top/./a", "top//etc/passwd", "top/a/..", "top/a/", "top/sub//"]
)
def test_a_key_that_is_no_path_is_refused_by_name(strict, source, proxy_before, key):
    proxy = proxy_before(strict, before=lists(("top/good", 1), (key, 1)))
    with pytest.raises(ConfigError, match="cannot be a file") as caught:
        source_without_heads(source, proxy, strict).files()
    assert repr(key) in caught.value.message


def test_a_file_that_is_a_folder_of_others_is_refused(strict, source, proxy_before):
    proxy = proxy_before(strict, before=lists(("top/a", 1), ("top/a/b", 1)))
    with pytest.raises(ConfigError, match="folder of others"):
        source_without_heads(source, proxy, strict).files()


def test_the_sha256_is_the_one_in_the_metadata(store, source, objects):
    sha256 = hashlib.sha256(b"abc").hexdigest()
    put = objects(store)
    put.put("with", b"abc", Metadata={"sha256": sha256})
    put.put("without", b"abc")
    assert [file.sha256 for file in source(store).files()] == [sha256, None]


def test_an_object_replaced_while_it_is_read_has_changed(store, source, objects, noise):
    put = objects(store)
    put.put("a", noise(2 * MIB))
    reader = source(store)
    (file,) = reader.files()
    reader.read(file, 0, MIB)
    put.put("a", noise(2 * MIB, seed=1))
    with pytest.raises(SourceChanged):
        reader.read(file, MIB, MIB)


def test_an_object_that_became_shorter_has_changed(store, source, objects, noise):
    put = objects(store)
    put.put("a", noise(2 * MIB))
    reader = source(store)
    (file,) = reader.files()
    put.put("a", b"short")
    with pytest.raises(SourceChanged):
        reader.read(file, MIB, MIB)


def test_an_object_that_is_gone_is_told(store, source, objects, prefix):
    put = objects(store)
    put.put("a", b"abc")
    reader = source(store)
    (file,) = reader.files()
    put.client.delete_object(Bucket="relay-lab", Key=f"{prefix}/a")
    with pytest.raises(ArtifactError, match="not there") as caught:
        reader.read(file, 0, 3)
    assert not isinstance(caught.value, SourceChanged)


def test_a_connection_cut_in_the_middle_is_tried_again_with_the_same_condition(
    store, source, objects, noise, proxy_before
):
    data, pauses = noise(4 * MIB), []
    objects(store).put("a", data)
    proxy = proxy_before(store, after=spoiling(2, cut_at=MIB))
    reader = source(store, proxy.endpoint, pauses=pauses)
    (file,) = reader.files()
    assert reader.read(file, MIB, 2 * MIB) == data[MIB : 3 * MIB]
    reads = [request for request in proxy.requests if is_ranged(request)]
    assert [(read.headers["Range"], read.headers["If-Match"]) for read in reads] == 3 * [
        (f"bytes={MIB}-{3 * MIB - 1}", f'"{file.version}"')
    ]
    assert pauses == [0.5, 1.0]


def test_a_connection_that_is_cut_each_time_is_given_up(store, source, objects, noise, proxy_before):
    objects(store).put("a", noise(MIB))
    proxy = proxy_before(store, after=spoiling(99, cut_at=1000))
    reader = source(store, proxy.endpoint)
    (file,) = reader.files()
    with pytest.raises(HostUnreachable, match="5 times"):
        reader.read(file, 0, MIB)
    assert sum(map(is_ranged, proxy.requests)) == 5


def test_an_object_replaced_between_two_tries_has_changed(store, source, objects, noise, proxy_before):
    put = objects(store)
    put.put("a", noise(MIB))
    proxy = proxy_before(store)
    reader = source(store, proxy.endpoint)
    (file,) = reader.files()
    cut = spoiling(1, cut_at=1000)

    def after(request, answer):
        if is_ranged(request):
            put.put("a", noise(MIB, seed=1))
        return cut(request, answer)

    proxy.after = after
    with pytest.raises(SourceChanged):
        reader.read(file, 0, MIB)


def test_the_whole_in_answer_to_a_part_is_refused(store, source, objects, noise, proxy_before):
    data = noise(MIB)
    put = objects(store)
    etag = put.put("a", data)["ETag"]
    whole = Answer(200, (("ETag", etag), ("Content-Length", str(MIB))), data)
    proxy = proxy_before(store, before=lambda request: whole if is_ranged(request) else None)
    reader = source(store, proxy.endpoint)
    (file,) = reader.files()
    with pytest.raises(ArtifactError, match="HTTP 200 and not 206"):
        reader.read(file, 10, 10)
    assert reader.read(file, 0, MIB) == data


@pytest.mark.parametrize(
    ("told", "length"), [("bytes 11-20/100", 10), ("bytes 10-19/99", 10), ("bytes 10-18/100", 9), ("", 10)]
)
def test_another_range_than_was_asked_for_is_refused(store, source, objects, noise, proxy_before, told, length):
    etag = objects(store).put("a", noise(100))["ETag"]
    spoiled = Answer(206, (("ETag", etag), ("Content-Range", told)), noise(length))
    proxy = proxy_before(store, before=lambda request: spoiled if is_ranged(request) else None)
    reader = source(store, proxy.endpoint)
    (file,) = reader.files()
    with pytest.raises(ArtifactError, match="asked for"):
        reader.read(file, 10, 10)


def test_an_answer_that_announces_less_is_refused(store, source, objects, noise, proxy_before):
    objects(store).put("a", noise(100))
    proxy = proxy_before(store)
    reader = source(store, proxy.endpoint)
    (file,) = reader.files()
    proxy.after = lambda request, answer: answer.changed(
        headers=tuple((k, v) for k, v in answer.headers if k.lower() != "content-length"), body=answer.body[:5]
    )
    with pytest.raises(ArtifactError, match="announced 5"):
        reader.read(file, 10, 10)


def test_a_server_that_is_busy_for_a_moment_is_asked_again(store, source, objects, proxy_before):
    objects(store).put("a", b"abc")
    proxy = proxy_before(store)
    reader = source(store, proxy.endpoint, max_attempts=2)
    (file,) = reader.files()
    busy = [error(503, "SlowDown")]
    proxy.before = lambda request: busy.pop() if busy else None
    assert reader.read(file, 0, 3) == b"abc"


def test_nothing_of_a_checksum_is_asked_for(store, source, objects, proxy_before):
    objects(store).put("a", b"abc")
    proxy = proxy_before(store)
    reader = source(store, proxy.endpoint)
    (file,) = reader.files()
    reader.read(file, 0, 3)
    assert not [name for request in proxy.requests for name in request.headers if "checksum" in name.lower()]


def test_an_empty_file_is_not_asked_for(source, strict):
    assert source(strict).read(StoredFile("a", 0, "x"), 0, 0) == b""


def test_an_object_of_exactly_the_key_says_that_it_is_all_there_is(store, source, objects, prefix):
    objects(store).put("x/x", b"1")
    (one,) = source(store, at=f"{prefix}/x/x").files()
    (within,) = source(store, at=f"{prefix}/x").files()
    assert (one.path, one.is_all, within.path, within.is_all) == ("x", True, "x", False)
