import socket
import traceback

import pytest

from dflashctl.errors import ArtifactError, ConfigError, HostUnreachable
from dflashctl.transport.stores import SourceChanged, StoredFile
from s3_proxy import Answer, error
from s3_servers import ENV, KEY, SECRET

SMALL = StoredFile("small", 3, "v1")


def texts(caught):
    """All that anybody may see of an error, with --debug too."""
    return "".join(traceback.format_exception(caught.value)) + caught.value.message + caught.value.hint


def test_a_wrong_secret_key_is_told_and_shown_to_nobody(store, source):
    env = {**ENV, "LAB_S3_SECRET": "wrong-and-secret-too"}
    with pytest.raises(ConfigError, match="secret key does not belong") as caught:
        source(store, env=env, at="x/").files()
    assert not [word for word in (KEY, SECRET, "wrong-and-secret-too") if word in texts(caught)]


def test_a_wrong_access_key_is_told_and_shown_to_nobody(store, sink):
    env = {**ENV, "LAB_S3_KEY": "nobodys-key"}
    with pytest.raises(ConfigError, match="does not know the access key") as caught:
        sink(store, env=env).begin((SMALL,))
    assert "nobodys-key" not in texts(caught) and SECRET not in texts(caught)


def test_what_a_server_says_of_keys_and_signatures_is_not_repeated(strict, source, proxy_before):
    def before(request):
        return error(403, "AccessDenied", f"{KEY} {SECRET} {request.headers['Authorization']}")

    with pytest.raises(ArtifactError, match="denies it") as caught:
        source(strict, proxy_before(strict, before=before).endpoint, at="x/").files()
    assert not [word for word in (KEY, SECRET, "Signature=") if word in texts(caught)]


def test_a_code_that_is_no_word_is_not_repeated(strict, source, proxy_before):
    proxy = proxy_before(strict, before=lambda request: error(400, f"see {SECRET}"))
    with pytest.raises(ArtifactError, match="unreadable code") as caught:
        source(strict, proxy.endpoint, at="x/").files()
    assert SECRET not in texts(caught)


@pytest.mark.parametrize(
    ("status", "code", "kind", "words"),
    [
        (404, "NoSuchBucket", ConfigError, "no such bucket"),
        (403, "AccessDenied", ArtifactError, "denies it"),
        (403, "RequestTimeTooSkewed", ConfigError, "too far apart"),
        (403, "ExpiredToken", ConfigError, "session token"),
        (503, "SlowDown", HostUnreachable, "slow down"),
        (429, "TooManyRequests", HostUnreachable, "slow down"),
        (500, "InternalError", HostUnreachable, "failed at it again and again"),
        (507, "InsufficientStorage", ArtifactError, "no room left"),
        (507, "XMinioStorageFull", ArtifactError, "no room left"),
        (400, "InvalidArgument", ArtifactError, r"refuses it \(HTTP 400\) \(InvalidArgument\)"),
        (412, "PreconditionFailed", SourceChanged, "has changed"),
    ],
)
def test_each_answer_has_its_sentence(strict, sink, proxy_before, status, code, kind, words):
    proxy = proxy_before(strict)
    writer = sink(strict, proxy.endpoint, max_attempts=1)
    writer.begin((SMALL,))
    proxy.before = lambda request: error(status, code)
    with pytest.raises(kind, match=words) as caught:
        writer.write(SMALL, 0, b"abc")
    assert caught.value.message.startswith("cannot write s3://lab/there/small: ")
    assert "\n" not in caught.value.message


def test_an_endpoint_where_nobody_listens_is_unreachable_by_its_name(strict, source):
    with socket.socket() as held:
        # Bound, so that nobody else is there, and not listening.
        held.bind(("127.0.0.1", 0))
        name = f"127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(HostUnreachable, match="cannot be reached") as caught:
            source(strict, f"http://{name}", at="x/", max_attempts=1).files()
    assert caught.value.host == name


def test_a_name_that_nobody_knows_is_unreachable(strict, source):
    with pytest.raises(HostUnreachable, match=r"s3\.invalid cannot be reached"):
        source(strict, "http://s3.invalid", at="x/", max_attempts=1).files()


def test_a_server_that_hangs_up_is_unreachable(strict, source, proxy_before):
    def hang_up(request):
        raise ConnectionResetError

    reader = source(strict, proxy_before(strict, before=hang_up).endpoint, at="x/", max_attempts=1)
    with pytest.raises(HostUnreachable, match="closed the connection"):
        reader.files()


def test_a_server_that_is_none_of_s3_is_told(strict, sink, proxy_before):
    page = Answer(200, (("Content-Type", "text/html"),), b"<html></html>")
    writer = sink(strict, proxy_before(strict, before=lambda request: page).endpoint)
    writer.begin((SMALL,))
    with pytest.raises(HostUnreachable, match="has no ETag"):
        writer.write(SMALL, 0, b"abc")
