"""HubSource against a stand-in on loopback, which the real client understands too: see the first test."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import huggingface_hub
import huggingface_hub.constants
import pytest

from dflashctl.errors import ArtifactError, ConfigError, HostUnreachable
from dflashctl.transport.hub import open_hub
from dflashctl.transport.hub_place import find_hub, is_safe_path, parse_place
from dflashctl.transport.stores import SourceChanged, StoredFile
from hub_stand_in import hub_stand_in, oid

TOKEN = "hf_never_to_be_seen"
BIG = bytes(range(251)) * 400
SMALL = b'{"block_size": 16}'
FILES = {"config.json": SMALL, "model.safetensors": BIG, "a b/\u00fc#?.txt": b"odd", "empty": b""}


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    huggingface_hub.close_session()
    with hub_stand_in() as stand_in:
        yield stand_in
        huggingface_hub.close_session()


@pytest.fixture
def opened(hub):
    """Opens sources of the stand-in; `opened.waits` are the seconds that they would have waited."""
    sources = []

    def open_one(url="hf://org/drafter", token=None, **options):
        env = {} if token is None else {"HF_TOKEN": token}
        source = open_hub(url, env, endpoint=hub.url, wait=open_one.waits.append, **options)
        sources.append(source)
        return source

    open_one.waits = []
    yield open_one
    for source in sources:
        source.close()


def whole(source, path):
    (file,) = (file for file in source.files() if file.path == path)
    return source.read(file, 0, file.size_bytes)


def big(source):
    return next(file for file in source.files() if file.path == "model.safetensors")


def test_the_real_client_reads_the_stand_in(hub, tmp_path):
    commit = hub.commit(FILES)
    hub.page_entries = 2
    api = huggingface_hub.HfApi(endpoint=hub.url, token=False)
    assert api.model_info("org/drafter", revision="main").sha == commit
    # Its pages would come from the hub that Link names, so one page.
    hub.page_entries = 1000
    tree = {entry.path: entry for entry in api.list_repo_tree("org/drafter", revision=commit, recursive=True)}
    assert tree["model.safetensors"].lfs.sha256 == hashlib.sha256(BIG).hexdigest()
    assert tree["config.json"].blob_id == oid(SMALL)
    for path, data in FILES.items():
        if path.isascii():
            got = api.hf_hub_download("org/drafter", path, revision=commit, cache_dir=tmp_path)
            with open(got, "rb") as file:
                assert file.read() == data


def test_files_have_sizes_versions_and_the_sha256_of_lfs(hub, opened):
    hub.commit(FILES)
    assert opened().files() == (
        StoredFile("a b/\u00fc#?.txt", 3, f"git:{oid(b'odd')}"),
        StoredFile("config.json", len(SMALL), f"git:{oid(SMALL)}"),
        StoredFile("empty", 0, f"git:{oid(b'')}"),
        StoredFile(
            "model.safetensors",
            len(BIG),
            f"lfs:{hashlib.sha256(BIG).hexdigest()}",
            hashlib.sha256(BIG).hexdigest(),
        ),
    )


def test_all_pages_of_a_list_are_read_from_the_hub_that_was_named(hub, opened):
    hub.commit({f"folder/{number:03}": b"x" for number in range(25)})
    hub.page_entries = 4
    assert [file.path for file in opened().files()] == [f"folder/{number:03}" for number in range(25)]
    assert sum("/tree/" in path for path, _ in hub.requests) == 7


def test_every_file_reads_back(hub, opened):
    hub.commit(FILES)
    source = opened()
    assert {file.path: whole(source, file.path) for file in source.files()} == FILES


@pytest.mark.parametrize(("offset", "length"), [(0, 1), (1, 1), (99, 4000), (len(BIG) - 1, 1), (0, len(BIG)), (7, 0)])
def test_a_range_is_exactly_what_was_asked_for(hub, opened, offset, length):
    hub.commit(FILES)
    source = opened()
    assert source.read(big(source), offset, length) == BIG[offset : offset + length]


def test_what_answers_without_ranges_is_read_from_its_start(hub, opened):
    hub.commit(FILES)
    hub.ranges = False
    source = opened()
    assert source.read(big(source), 1000, 5000) == BIG[1000:6000]


def test_threads_read_at_once(hub, opened):
    hub.commit(FILES)
    source = opened()
    file = big(source)
    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(lambda start: source.read(file, start, 1000), range(0, 100_000, 1000)))
    assert b"".join(parts) == BIG[:100_000]


def test_a_folder_and_a_single_file_can_be_asked_for(hub, opened):
    hub.commit({"step-1/config.json": SMALL, "step-1/sub/x": b"x", "step-10/config.json": b"other"})
    folder = opened("hf://org/drafter/step-1/")
    assert [file.path for file in folder.files()] == ["config.json", "sub/x"]
    assert whole(folder, "config.json") == SMALL
    single = opened("hf://org/drafter/step-1/config.json")
    assert [file.path for file in single.files()] == ["config.json"]
    assert whole(single, "config.json") == SMALL


def test_a_dataset_is_another_repository_than_a_model_of_that_name(hub, opened):
    hub.commit({"a": b"model"})
    hub.commit({"a": b"dataset", "big": BIG}, kind="dataset")
    source = opened("hf://datasets/org/drafter")
    assert (whole(source, "a"), whole(source, "big")) == (b"dataset", BIG)


def test_the_commit_stays_when_main_moves_between_listing_and_reading(hub, opened):
    commit = hub.commit(FILES)
    source = opened()
    listed = source.files()
    hub.commit({"config.json": b"newer", "model.safetensors": BIG[::-1]})
    assert source.name == f"hf://org/drafter@{commit}"
    assert whole(source, "model.safetensors") == BIG
    assert whole(source, "config.json") == SMALL
    assert opened(source.name).files() == listed


def test_the_commit_is_that_of_the_opening_when_main_moves_before_the_listing(hub, opened):
    hub.commit(FILES)
    source = opened()
    hub.commit({"config.json": b"newer"})
    assert len(source.files()) == len(FILES)


def test_a_branch_with_a_slash_is_written_with_percent(hub, opened):
    hub.commit({"a": b"pull"}, revision="refs/pr/3")
    hub.commit({"a": b"branch"}, revision="my/branch")
    assert whole(opened("hf://org/drafter@refs/pr/3/a"), "a") == b"pull"
    assert whole(opened("hf://org/drafter@my%2Fbranch"), "a") == b"branch"


def test_the_token_goes_to_the_hub_and_never_to_its_storage(hub, opened):
    hub.commit(FILES)
    hub.members.add(TOKEN)
    hub.private.add(("model", "org/drafter"))
    source = opened(token=TOKEN)
    assert {file.path: whole(source, file.path) for file in source.files()} == FILES
    assert hub.cdn_requests and hub.tokens_at_cdn() == []
    assert {headers.get("authorization") for _, headers in hub.requests} == {f"Bearer {TOKEN}"}


def test_the_token_of_another_variable_is_used_by_its_name(hub, opened):
    hub.commit(FILES)
    hub.members.add(TOKEN)
    env = {"HF_TOKEN": "hf_other", "WORK_TOKEN": TOKEN + "\n"}
    source = open_hub("hf://org/drafter", env, endpoint=hub.url, token_variable="WORK_TOKEN")
    source.close()
    assert hub.requests[0][1]["authorization"] == f"Bearer {TOKEN}"
    with pytest.raises(ConfigError, match="WORK_TOKEN, which is not set"):
        open_hub("hf://org/drafter", {}, endpoint=hub.url, token_variable="WORK_TOKEN")


def test_the_storage_is_asked_again_without_asking_the_hub_again(hub, opened):
    hub.commit(FILES)
    source = opened()
    file = big(source)
    for start in range(0, 5000, 1000):
        source.read(file, start, 1000)
    assert sum("/resolve/" in path for path, _ in hub.requests) == 1


def test_an_address_that_ran_out_is_asked_for_anew(hub, opened):
    hub.commit(FILES)
    source = opened()
    file = big(source)
    source.read(file, 0, 10)
    hub.cdn_troubles = [lambda handler: handler.say(403)]
    assert source.read(file, 10, 10) == BIG[10:20]
    assert sum("/resolve/" in path for path, _ in hub.requests) == 2


def test_a_body_that_breaks_off_is_read_on_from_there(hub, opened):
    hub.commit(FILES)
    hub.cuts = [30_000, 20_000]
    source = opened()
    assert whole(source, "model.safetensors") == BIG
    assert [headers["range"] for _, headers in hub.cdn_requests] == [
        f"bytes={start}-{len(BIG) - 1}" for start in (0, 30_000, 50_000)
    ]


def test_a_body_that_always_breaks_off_is_given_up(hub, opened):
    hub.commit(FILES)
    hub.cuts = [0] * 100
    source = opened()
    with pytest.raises(HostUnreachable):
        whole(source, "model.safetensors")
    assert len(hub.cdn_requests) == 6
    assert len(opened.waits) == 5


def test_a_rate_limit_is_waited_out_as_long_as_it_says(hub, opened):
    hub.commit(FILES)
    hub.troubles = [lambda handler: handler.say(429, Retry_After="7")]
    source = opened()
    hub.troubles = [lambda handler: handler.say(429, RateLimit='"api";r=0;t=55')]
    source.files()
    hub.troubles = [lambda handler: handler.say(429, Retry_After="9")]
    assert whole(source, "model.safetensors") == BIG
    assert opened.waits == [7.0, 56.0, 9.0]


def test_a_rate_limit_of_an_hour_is_not_waited_out(hub, opened):
    hub.commit(FILES)
    hub.troubles = [lambda handler: handler.say(429, Retry_After="3600")]
    with pytest.raises(HostUnreachable, match="asked too often and asks to wait 3600 s") as caught:
        opened()
    assert "HF_TOKEN" in caught.value.hint
    assert opened.waits == []


def test_a_hub_that_is_down_for_a_moment_is_asked_again(hub, opened):
    hub.commit(FILES)
    hub.troubles = [lambda handler: handler.say(503)] * 2
    assert len(opened().files()) == len(FILES)
    assert len(opened.waits) == 2


def test_nobody_at_the_address_is_unreachable():
    waits = []
    with pytest.raises(HostUnreachable, match="cannot be reached") as caught:
        # The port of discard, below those that are handed out: nobody listens there.
        open_hub("hf://org/drafter", {"HF_TOKEN": TOKEN}, endpoint="http://127.0.0.1:9", wait=waits.append)
    assert caught.value.exit_code == 3
    assert len(waits) == 5


@pytest.mark.parametrize("token", [None, "known"])
def test_a_gated_repository_is_one_sentence_and_the_alternatives(hub, opened, token):
    hub.commit(FILES)
    hub.gated.add(("model", "org/drafter"))
    with pytest.raises(ConfigError, match="hf://org/drafter is gated, and ") as caught:
        opened(token=token)
    for alternative in (f"ask for access on {hub.url}/org/drafter", "HF_TOKEN", "another repository"):
        assert alternative in caught.value.hint + caught.value.message


def test_access_taken_away_while_reading_is_an_artifact_error(hub, opened):
    hub.commit(FILES)
    source = opened()
    file = big(source)
    hub.gated.add(("model", "org/drafter"))
    with pytest.raises(ArtifactError, match="gated"):
        source.read(file, 0, 10)


def test_a_private_repository_looks_like_none_and_says_so(hub, opened):
    hub.commit(FILES)
    hub.private.add(("model", "org/drafter"))
    with pytest.raises(ConfigError, match="shows no model org/drafter") as caught:
        opened()
    assert "private ones look like this too: set HF_TOKEN" in caught.value.hint
    with pytest.raises(ConfigError, match="no model org/drafter that the token in HF_TOKEN may see"):
        opened(token="known")


def test_a_token_that_the_hub_does_not_know_is_named_by_its_variable(hub, opened):
    hub.commit(FILES)
    with pytest.raises(ConfigError, match="does not know the token in HF_TOKEN"):
        opened(token="hf_old")


def test_a_disabled_repository_is_told(hub, opened):
    hub.commit(FILES)
    said = "Access to this resource is disabled."
    hub.troubles = [lambda handler: handler.say_json(403, {"error": said}, X_Error_Message=said)]
    with pytest.raises(ConfigError, match="hf://org/drafter is disabled"):
        opened()


def test_an_unknown_revision_is_told(hub, opened):
    hub.commit(FILES)
    with pytest.raises(ConfigError, match="no revision 'v9'"):
        opened("hf://org/drafter@v9")


@pytest.mark.parametrize("path", ["none", "none/none", "config.json/none"])
def test_a_path_that_is_not_there_is_told(hub, opened, path):
    hub.commit(FILES)
    with pytest.raises(ArtifactError, match=f"/{path} is not there"):
        opened(f"hf://org/drafter/{path}").files()


def test_an_empty_repository_is_told(hub, opened):
    hub.commit({})
    with pytest.raises(ArtifactError, match="holds no file"):
        opened().files()


@pytest.mark.parametrize(
    "path",
    ["../x", "/etc/x", "a/../../x", "a//x", "./x", "..", "", "a\\..\\x", "a\nb", "a\x00", "\ud800", "a/", 7, None],
)
def test_a_path_that_leads_out_of_the_folder_is_refused(hub, opened, path):
    hub.commit(FILES)
    hub.extra_entries = [{"type": "file", "oid": oid(b"x"), "size": 1, "path": path}]
    with pytest.raises(ArtifactError, match="does not lie in the folder"):
        opened().files()


def test_a_file_of_another_folder_than_that_asked_for_is_refused(hub, opened):
    hub.commit({"step-1/a": b"x"})
    hub.extra_entries = [{"type": "file", "oid": oid(b"x"), "size": 1, "path": "other/a"}]
    with pytest.raises(ArtifactError, match="does not lie in the folder"):
        opened("hf://org/drafter/step-1").files()


@pytest.mark.parametrize("path", ["config.json", "config.json/a", "a b"])
def test_a_name_listed_twice_is_refused(hub, opened, path):
    hub.commit(FILES)
    hub.extra_entries = [{"type": "file", "oid": oid(b"x"), "size": 1, "path": path}]
    with pytest.raises(ArtifactError, match="one name twice"):
        opened().files()


@pytest.mark.parametrize(
    "wrong",
    [{"size": -1}, {"size": True}, {"size": "1"}, {"oid": "x"}, {"lfs": {"oid": "0" * 64, "size": 2}}, {"lfs": 1}],
)
def test_a_file_without_a_size_and_a_hash_is_refused(hub, opened, wrong):
    hub.commit(FILES)
    hub.extra_entries = [{"type": "file", "oid": oid(b"x"), "size": 1, "path": "x", **wrong}]
    with pytest.raises(ArtifactError, match="without a size and hash"):
        opened().files()


def test_a_list_without_an_end_is_given_up(hub, opened, monkeypatch):
    monkeypatch.setattr("dflashctl.transport.hub_listing.MOST_PAGES", 3)
    hub.commit({str(number): b"x" for number in range(20)})
    hub.page_entries = 1
    with pytest.raises(ArtifactError, match="no end after 3 pages"):
        opened().files()


@pytest.mark.parametrize(
    "told",
    [{"X_Linked_ETag": f'"{"0" * 64}"'}, {"X_Linked_Size": len(BIG) + 1}, {"X_Repo_Commit": "0" * 40}],
)
def test_a_file_that_is_another_one_now_is_a_changed_source(hub, opened, told):
    hub.commit(FILES)
    source = opened()
    file = big(source)
    hub.changed_headers = told
    with pytest.raises(SourceChanged, match="is not what was listed any more"):
        source.read(file, 0, 10)


def test_a_storage_that_exchanges_the_bytes_is_a_changed_source(hub, opened):
    hub.commit(FILES)
    source = opened()
    file = big(source)
    source.read(file, 0, 10)
    hub.cdn_troubles = [lambda handler: handler.say_range(BIG[::-1], with_ranges=True, ETag='"another"')]
    with pytest.raises(SourceChanged, match="exchanged"):
        source.read(file, 10, 10)


def test_a_storage_with_another_size_is_a_changed_source(hub, opened):
    hub.commit(FILES)
    hub.cdn_troubles = [lambda handler: handler.say_range(BIG + b"more", with_ranges=True)]
    source = opened()
    with pytest.raises(SourceChanged, match="its size is"):
        source.read(big(source), 0, 10)


def test_wrong_bytes_of_a_small_file_do_not_pass(hub, opened):
    commit = hub.commit(FILES)
    source = opened()
    source.files()
    hub.troubles = [
        lambda handler: handler.say_range(SMALL[::-1], with_ranges=True, X_Repo_Commit=commit, ETag=f'"{oid(SMALL)}"')
    ]
    with pytest.raises(SourceChanged, match="hash"):
        whole(source, "config.json")


def test_bytes_without_an_etag_are_not_taken(hub, opened):
    hub.commit(FILES)
    source = opened()
    source.files()
    hub.troubles = [lambda handler: handler.say_range(SMALL, with_ranges=True)]
    with pytest.raises(ArtifactError, match="without an ETag"):
        whole(source, "config.json")


def test_another_range_than_that_asked_for_is_not_taken(hub, opened):
    hub.commit(FILES)
    source = opened()
    file = big(source)
    hub.cdn_troubles = [lambda handler: handler.say(206, BIG[:10], Content_Range=f"bytes 0-9/{len(BIG)}")]
    with pytest.raises(ArtifactError, match="another range"):
        source.read(file, 5, 10)


@pytest.mark.parametrize("location", ["file:///etc/passwd", "http://[", "ftp://127.0.0.1/x"])
def test_a_redirect_to_what_is_no_web_address_is_refused(hub, opened, location):
    hub.commit(FILES)
    source = opened()
    file = big(source)
    hub.troubles = [lambda handler: handler.say(302, Location=location)]
    with pytest.raises(ArtifactError, match="is redirected to"):
        source.read(file, 0, 10)


def test_redirects_in_a_circle_end(hub, opened):
    hub.commit(FILES)
    source = opened()
    file = big(source)
    hub.troubles = [lambda handler: handler.say(302, Location=handler.path)] * 20
    with pytest.raises(ArtifactError, match="without end"):
        source.read(file, 0, 10)


def test_a_file_that_is_gone_at_the_hub_is_told(hub, opened):
    commit = hub.commit(FILES)
    source = opened()
    file = big(source)
    del hub.repositories["model", "org/drafter"][commit].files["model.safetensors"]
    with pytest.raises(ArtifactError, match=r"model\.safetensors is not there"):
        source.read(file, 0, 10)


@pytest.mark.parametrize("body", [b"<html>log in</html>", b"[]", b'{"id": "a/b", "sha": "main"}', b"\xff"])
def test_what_is_no_hub_is_told(hub, opened, body):
    hub.commit(FILES)
    hub.troubles = [lambda handler: handler.say(200, body)]
    with pytest.raises(ArtifactError, match="not answer like a Hugging Face hub"):
        opened()


def test_the_token_is_in_no_text(hub, opened):
    """Whatever goes wrong, and also if the hub writes it into its answers."""
    hub.commit(FILES)
    hub.members.add(TOKEN)
    source = opened(token=TOKEN)
    file = big(source)
    texts = [
        repr(source),
        source.name,
        str(vars(source)["_hub"]),
        repr(find_hub({"HF_TOKEN": TOKEN}, None, "HF_TOKEN")),
    ]
    for status in (400, 401, 403, 404, 410, 429, 451, 500):
        for code in ("", "GatedRepo", "RepoNotFound", "RevisionNotFound", "EntryNotFound", "Other"):

            def echo(handler, status=status, code=code):
                said = handler.headers["Authorization"]
                handler.refuse(status, code, said, Retry_After="1000")

            for act in (lambda: opened(token=TOKEN), lambda: source.read(file, 0, 10)):
                hub.troubles = [echo] * 10
                with pytest.raises((ConfigError, ArtifactError, HostUnreachable)) as caught:
                    act()
                texts += [repr(caught.value), caught.value.message, caught.value.hint]
    assert not [text for text in texts if TOKEN in text]


@pytest.mark.parametrize("token", ["hf_a\nHost: x", "hf_\u00e4", "two words"])
def test_what_is_no_token_is_refused_unseen(token):
    with pytest.raises(ConfigError, match="what HF_TOKEN holds is no token") as caught:
        open_hub("hf://org/drafter", {"HF_TOKEN": token}, endpoint="http://127.0.0.1:9")
    assert token not in str(caught.value) + caught.value.hint


def test_a_token_does_not_go_over_plain_http():
    with pytest.raises(ConfigError, match="over plain http"):
        find_hub({"HF_TOKEN": TOKEN}, "http://mirror.example", "HF_TOKEN")
    assert find_hub({}, "http://mirror.example/", "HF_TOKEN").endpoint == "http://mirror.example"


def test_the_hub_is_that_of_the_argument_or_of_the_environment():
    env = {"HF_ENDPOINT": "https://mirror.example/hf/"}
    assert find_hub(env, None, "HF_TOKEN").endpoint == "https://mirror.example/hf"
    assert find_hub(env, "https://other.example", "HF_TOKEN").host == "other.example"
    assert find_hub({}, None, "HF_TOKEN").endpoint == "https://huggingface.co"


@pytest.mark.parametrize("address", ["huggingface.co", "ftp://a", "https://u:secret@a", "https://a?x", "https://a:b"])
def test_an_address_that_is_no_hub_is_refused_unseen(address):
    with pytest.raises(ConfigError) as caught:
        find_hub({}, address, "HF_TOKEN")
    assert "secret" not in caught.value.message + caught.value.hint


@pytest.mark.parametrize(
    ("url", "kind", "revision", "path"),
    [
        ("hf://org/name", "model", None, ""),
        ("hf://models/org/name/", "model", None, ""),
        ("hf://datasets/org/name@v1/a/b", "dataset", "v1", "a/b"),
        ("hf://org/name@refs/pr/12/a", "model", "refs/pr/12", "a"),
        ("hf://org/name@refs/convert/parquet", "model", "refs/convert/parquet", ""),
        ("hf://org/name@my%2Fbranch/a@b", "model", "my/branch", "a@b"),
    ],
)
def test_an_address_names_kind_revision_and_path(url, kind, revision, path):
    place = parse_place(url)
    assert (place.kind, place.repository, place.revision, place.path) == (kind, "org/name", revision, path)


@pytest.mark.parametrize(
    "url",
    [
        "hf://",
        "hf://name",
        "hf://org/",
        "https://huggingface.co/org/name",
        "hf://org/name@",
        "hf://org/name/../x",
        "hf://org/na..me",
        "hf://spaces/org/name",
        "hf://hf_secret@org/name",
        "hf://org/name/a//b",
    ],
)
def test_an_address_that_names_no_repository_is_refused(url):
    with pytest.raises(ConfigError) as caught:
        parse_place(url)
    assert "hf_secret" not in caught.value.message + caught.value.hint


def test_names_of_other_alphabets_are_safe():
    assert is_safe_path("\u30e2\u30c7\u30eb/a b.txt")


def test_a_file_that_was_asked_for_itself_says_that_it_is_all_there_is(hub, opened):
    hub.commit({"x/x": SMALL})
    (one,) = opened("hf://org/drafter/x/x").files()
    (within,) = opened("hf://org/drafter/x").files()
    assert (one.path, one.is_all, within.path, within.is_all) == ("x", True, "x", False)
