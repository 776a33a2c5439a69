"""Relays with a store at one end, through the command line: S3 at either, a Hugging Face repository as a source."""

import json
import random
import signal
import threading
from pathlib import Path

import pytest
import yaml

from hub_stand_in import hub_stand_in
from relay_site import MIB, RelaySite, digests_of, digests_on, put
from s3_proxy import Proxy
from s3_servers import BUCKET, ENV, SECRET, Server, binary
from sshlab.host import wait_until

KEYS = {"NO_PROXY": "127.0.0.1", **ENV}
PROGRAMS = {"strict": "weed", "sloppy": "rclone"}


@pytest.fixture(scope="module")
def servers(lab, tmp_path_factory):
    """Gives the store of a kind, in the operator's network, and starts its server at the first call."""
    running, stores = [], {}

    def store(kind):
        if binary(PROGRAMS[kind]) is None:
            pytest.skip(f"no {PROGRAMS[kind]} here: the dev extra has it for Linux on x86_64 and aarch64")
        if kind not in stores:
            with lab.in_operator():
                running.append(Server(kind, tmp_path_factory.mktemp(f"s3-{kind}")))
                stores[kind] = running[-1].start()
        return stores[kind]

    yield store
    for server in running:
        server.stop()


class StoreSite(RelaySite):
    """The operator, whose hosts.yaml knows a bucket, reached through a proxy that tells what was asked."""

    def __init__(self, lab, folder, store):
        super().__init__(lab, folder)
        self.store, self.proxy = store, Proxy(store.endpoint).start()
        hosts = yaml.safe_load(self.operator.hosts_file.read_text())
        hosts["s3"] = {"archive": store.spec(self.proxy.endpoint).model_dump(mode="json", exclude_unset=True)}
        self.operator.hosts_file.write_text(yaml.safe_dump(hosts))
        self.url = f"s3://archive/{folder.name}"

    def key(self, path):
        return f"{self.folder.name}/{path}"

    def path(self, *words, env=ENV, timeout_s=120.0):
        done = self.operator.cli("relay", "path", *words, env={"NO_PROXY": "127.0.0.1", **env}, timeout_s=timeout_s)
        assert SECRET not in done.out + done.err
        return done

    def begin(self, *words):
        return self.operator.start_cli("relay", "path", *words, env=KEYS)

    def tree(self, **files):
        folder = self.operator.home / "tree"
        for name, data in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return folder

    def num_ranges(self, since=0):
        """Of big objects: pieces of 8 MiB that were read."""
        return sum(is_big_read(request) for request in self.proxy.requests[since:])


@pytest.fixture
def site_on(lab, servers, tmp_path):
    made = []

    def make(kind):
        made.append(StoreSite(lab, tmp_path, servers(kind)))
        return made[-1]

    yield make
    for site in made:
        site.proxy.stop()
        site.operator.end_started()


@pytest.fixture
def site(site_on):
    return site_on("strict")


def noise(num_bytes, seed=0):
    return random.Random(seed).randbytes(num_bytes)


class Gate:
    """Before the store: lets a number of requests of a kind by, and holds back the rest of them until it is opened."""

    def __init__(self, is_meant, number):
        self._is_meant, self._left = is_meant, number
        self._lock, self.is_open, self.is_reached = threading.Lock(), threading.Event(), threading.Event()

    def __call__(self, request):
        if not self.is_open.is_set() and self._is_meant(request):
            with self._lock:
                self._left -= 1
                is_by = self._left >= 0
            if not is_by:
                self.is_reached.set()
                self.is_open.wait(120)


def is_part(request):
    return request.part is not None


def is_big_read(request):
    return request.method == "GET" and span_of(request) >= MIB


def span_of(request):
    """How many bytes of an object are asked for; 0 if that is not said."""
    first, _, last = request.headers.get("Range", "").removeprefix("bytes=").partition("-")
    return int(last) - int(first) + 1 if last else 0


@pytest.mark.parametrize("kind", ["strict", pytest.param("sloppy", marks=pytest.mark.slow)])
def test_a_tree_goes_to_a_bucket_and_comes_back_the_same(site_on, kind):
    site = site_on(kind)
    names = {"empty.bin": b"", 'a b/c\'d "e".txt': b"odd", "ünï/#%&+;=.txt": b"odder", "big.bin": noise(20 * MIB)}
    folder = site.tree(**names, **{"manifest.json": b'{"of": "somebody else"}'})
    done = site.path(str(folder), f"{site.url}/", "--json")
    told = json.loads(done.out)
    assert (done.code, told["sent_bytes"], told["hows"]["raw"]) == (0, told["total_bytes"], told["total_bytes"]), done
    assert sorted(site.proxy.parts()) == [1, 2, 3]
    back = site.path(f"{site.url}/tree", "there/")
    assert back.code == 0, back.err
    assert "sent 20.0 MiB for 20.0 MiB" in back.out
    there = site.operator.home / "there/tree"
    assert digests_of(there) == digests_of(folder)
    assert sorted(path.name for path in there.parent.iterdir()) == ["tree"]
    num_before = len(site.proxy.requests)
    assert json.loads(site.path(str(folder), f"{site.url}/tree", "--json").out)["sent_bytes"] == 0
    again = site.path(f"{site.url}/tree", str(there))
    assert (again.code, "already, and the same: nothing was sent" in again.out) == (0, True), again.err
    assert site.num_ranges(num_before) == 0
    assert SECRET not in (site.operator.home / ".local/state/dflashctl/relays.jsonl").read_text()


def test_one_file_goes_from_a_host_to_a_bucket_and_to_another_host(site, kpro6, ct129):
    data = noise(10 * MIB)
    kpro6.write(f"{site.workdir(kpro6)}/one file.bin", data)
    assert site.path(f"kpro6:{site.workdir(kpro6)}/one file.bin", f"{site.url}/deep/").code == 0
    done = site.path(f"{site.url}/deep/one file.bin", f"ct129:{site.workdir(ct129)}/two.bin")
    assert done.code == 0, done.err
    assert ct129.read(f"{site.workdir(ct129)}/two.bin") == data
    # The folder of that object is a tree of one file.
    assert site.path(f"{site.url}/deep", f"ct129:{site.workdir(ct129)}/three").code == 0
    assert list(digests_on(ct129, f"{site.workdir(ct129)}/three")) == ["one file.bin"]


def test_an_upload_that_was_killed_sends_only_the_rest(site):
    folder = site.tree(**{"big.bin": noise(24 * MIB)})
    gate = site.proxy.before = Gate(is_part, 1)
    begun = site.begin(str(folder), f"{site.url}/up")
    assert gate.is_reached.wait(60)
    words = [Path(f"/proc/{begun.pid}/cmdline").read_text()]
    begun.kill()
    begun.wait()
    gate.is_open.set()
    client = site.store.client()
    wait_until(lambda: num_parts_there(client, site.key("up/big.bin")) >= 1, "a part in the store")
    client.close()
    num_before = len(site.proxy.parts())
    done = site.path(str(folder), f"{site.url}/up")
    assert done.code == 0, done.err
    # Those that were held back may have come to the store, too, after their sender was gone.
    assert len(site.proxy.parts()) - num_before <= 2
    assert SECRET not in "".join(words)
    assert site.path(f"{site.url}/up", "back").code == 0
    assert digests_of(site.operator.home / "back") == digests_of(folder)


def num_parts_there(client, key):
    uploads = client.list_multipart_uploads(Bucket=BUCKET, Prefix=key).get("Uploads", ())
    return sum(
        len(client.list_parts(Bucket=BUCKET, Key=key, UploadId=upload["UploadId"]).get("Parts", ()))
        for upload in uploads
    )


def test_a_download_that_was_killed_reads_only_the_rest_and_is_resumed_by_name(site, ct129):
    folder, place = site.tree(**{"big.bin": noise(32 * MIB)}), f"{site.workdir(ct129)}/down"
    assert site.path(str(folder), f"{site.url}/down").code == 0
    gate = site.proxy.before = Gate(is_big_read, 2)
    begun = site.begin(f"{site.url}/down", f"ct129:{place}", "--connections", "3")
    assert gate.is_reached.wait(60)
    site.wait_for_chunks(place, 2)
    begun.kill()
    begun.wait()
    gate.is_open.set()
    listed = json.loads(site.operator.cli("relay", "list", "--json").out)
    record = listed["begun_here"][-1]
    assert (record["outcome"], record["dest"]) == ("broken off", f"ct129:{place}")
    num_before = len(site.proxy.requests)
    done = site.operator.cli("relay", "resume", record["name"], env=KEYS)
    assert done.code == 0, done.err
    assert site.num_ranges(num_before) == 2
    assert digests_on(ct129, place) == digests_of(folder)
    assert site.debris(ct129, site.workdir(ct129)) == []


@pytest.mark.slow
def test_a_host_that_is_lost_during_a_download_is_waited_for(site, ct129):
    folder, place = site.tree(**{"big.bin": noise(32 * MIB)}), f"{site.workdir(ct129)}/down"
    assert site.path(str(folder), f"{site.url}/down").code == 0
    num_before = len(site.proxy.requests)
    gate = site.proxy.before = Gate(is_big_read, 2)
    begun = site.begin(f"{site.url}/down", f"ct129:{place}")
    assert gate.is_reached.wait(60)
    site.wait_for_chunks(place, 2)
    ct129.kill_sessions()
    gate.is_open.set()
    _, err = begun.communicate(timeout=60)
    assert (begun.returncode, b"trying again" in err) == (0, True), err
    assert digests_on(ct129, place) == digests_of(folder)
    # Each of the four lanes may lose one.
    assert site.num_ranges(num_before) <= 4 + 4


@pytest.mark.slow
def test_a_source_that_is_lost_during_an_upload_is_waited_for(site, kpro6):
    place = f"{site.workdir(kpro6)}/up"
    # More parts than are under way at once: some are read after it was lost.
    folder = site.tree(**{"big.bin": noise(48 * MIB)})
    put(kpro6, folder, place)
    gate = site.proxy.before = Gate(is_part, 1)
    begun = site.begin(f"kpro6:{place}", f"{site.url}/up")
    assert gate.is_reached.wait(60)
    kpro6.kill_sessions()
    gate.is_open.set()
    _, err = begun.communicate(timeout=60)
    assert (begun.returncode, b"trying again" in err) == (0, True), err
    assert site.path(f"{site.url}/up", "back").code == 0
    assert digests_of(site.operator.home / "back") == digests_of(folder)


def test_an_object_that_changes_while_it_is_read_is_an_error_and_never_a_mixture(site, ct129):
    folder, place = site.tree(**{"big.bin": noise(24 * MIB)}), f"{site.workdir(ct129)}/down"
    assert site.path(str(folder), f"{site.url}/down").code == 0
    gate = site.proxy.before = Gate(is_big_read, 1)
    begun = site.begin(f"{site.url}/down", f"ct129:{place}")
    assert gate.is_reached.wait(60)
    client, other = site.store.client(), noise(24 * MIB, seed=1)
    client.put_object(Bucket=BUCKET, Key=site.key("down/big.bin"), Body=other)
    client.close()
    gate.is_open.set()
    out, err = begun.communicate(timeout=60)
    assert (begun.returncode, b"changed" in err, out) == (5, True, b""), err
    assert digests_on(ct129, place) == {}
    done = site.path(f"{site.url}/down", f"ct129:{place}")
    assert done.code == 0, done.err
    assert ct129.read(f"{place}/big.bin") == other


@pytest.mark.slow
def test_a_store_that_drops_an_upload_is_given_it_again(site):
    folder = site.tree(**{"big.bin": noise(24 * MIB)})
    gate = site.proxy.before = Gate(is_part, 1)
    begun = site.begin(str(folder), f"{site.url}/up")
    assert gate.is_reached.wait(60)
    client = site.store.client()
    for upload in client.list_multipart_uploads(Bucket=BUCKET, Prefix=site.key("up")).get("Uploads", ()):
        client.abort_multipart_upload(Bucket=BUCKET, Key=upload["Key"], UploadId=upload["UploadId"])
    client.close()
    gate.is_open.set()
    _, err = begun.communicate(timeout=60)
    assert (begun.returncode, b"dropped" in err, b"that is sent again" in err) == (0, True, True), err
    assert site.path(f"{site.url}/up", "back").code == 0
    assert digests_of(site.operator.home / "back") == digests_of(folder)


@pytest.mark.parametrize("way", ["up", pytest.param("down", marks=pytest.mark.slow)])
def test_ctrl_c_ends_it_and_resume_goes_on(site, way):
    folder = site.tree(**{"big.bin": noise(24 * MIB)})
    words, is_meant = [str(folder), f"{site.url}/up"], is_part
    if way == "down":
        assert site.path(*words).code == 0
        words, is_meant = [f"{site.url}/up", "down"], is_big_read
    gate = site.proxy.before = Gate(is_meant, 1)
    begun = site.begin(*words)
    assert gate.is_reached.wait(60)
    begun.send_signal(signal.SIGINT)
    # The store still does not answer.
    _, err = begun.communicate(timeout=60)
    assert (begun.returncode, b"relay resume" in err, b"Traceback" in err) == (130, True, False), err
    gate.is_open.set()
    done = site.operator.cli("relay", "resume", env=KEYS)
    assert done.code == 0, done.err
    if way == "down":
        assert digests_of(site.operator.home / "down") == digests_of(folder)


def test_what_is_there_and_differs_stays_unless_it_is_to_be_replaced(site):
    folder = site.tree(**{"a.bin": b"new", "b.bin": b"same"})
    client = site.store.client()
    client.put_object(Bucket=BUCKET, Key=site.key("there/a.bin"), Body=b"old")
    done = site.path(str(folder), f"{site.url}/there")
    assert (done.code, "a.bin already" in done.err, "--replace" in done.err) == (2, True, True), done.err
    assert client.get_object(Bucket=BUCKET, Key=site.key("there/a.bin"))["Body"].read() == b"old"
    assert site.path(str(folder), f"{site.url}/there", "--replace").code == 0
    client.close()
    place = site.operator.home / "place"
    place.mkdir()
    (place / "mine").write_text("mine")
    done = site.path(f"{site.url}/there", str(place))
    assert (done.code, "is not the same" in done.err) == (2, True), done.err
    assert [path.name for path in place.iterdir()] == ["mine"]
    done = site.path(f"{site.url}/there", str(place), "--replace")
    assert (done.code, digests_of(place)) == (0, digests_of(folder)), done.err


def test_a_protected_host_is_replaced_only_if_it_is_named(lab, site, ct129):
    hosts = yaml.safe_load(site.operator.hosts_file.read_text())
    hosts["hosts"]["ct129"]["protected"] = True
    site.operator.hosts_file.write_text(yaml.safe_dump(hosts))
    assert site.path(str(site.tree(a=b"a")), f"{site.url}/a").code == 0
    done = site.path(f"{site.url}/a", f"ct129:{site.workdir(ct129)}/a", "--replace")
    assert (done.code, "--touch" in done.err) == (2, True), done.err
    done = site.path(f"{site.url}/a", f"ct129:{site.workdir(ct129)}/a", "--replace", "--touch", "ct129")
    assert done.code == 0, done.err


def test_a_tree_that_lacks_what_its_manifest_names_is_refused_both_ways(site):
    folder = site.tree(**{"a.bin": b"a", "manifest.json": b'{"files": [{"path": "gone.bin", "sha256": "00"}]}'})
    done = site.path(str(folder), f"{site.url}/x")
    assert (done.code, "gone.bin" in done.err) == (5, True), done.err
    client = site.store.client()
    client.put_object(Bucket=BUCKET, Key=site.key("y/manifest.json"), Body=(folder / "manifest.json").read_bytes())
    client.close()
    done = site.path(f"{site.url}/y", "y")
    assert (done.code, "gone.bin" in done.err) == (5, True), done.err
    assert not (site.operator.home / "y").exists()


@pytest.mark.parametrize(
    ("words", "env", "code", "said"),
    [
        (["s3://archive/x", "here"], {}, 2, "LAB_S3_KEY, LAB_S3_SECRET"),
        (["s3://archiv/x", "here"], ENV, 2, "did you mean s3://archive?"),
        (["here", "s3://archiv/x"], ENV, 2, "did you mean s3://archive?"),
        (["s3://archive/nothing-of-that-name", "here"], ENV, 5, "there is nothing"),
        (["s3://archive/x", "s3://archive/y"], ENV, 2, "both stores"),
        (["here", "hf://org/name"], ENV, 2, "can only be read"),
        (["s3://archive/x", "ct12:/x"], ENV, 2, "did you mean ct129:/x?"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence_and_not_remembered(site, words, env, code, said):
    done = site.path(*words, env=env)
    assert (done.code, said in done.err, done.err.count("\n") <= 2) == (code, True, True), done.err
    if said.startswith("LAB_S3"):
        assert json.loads(site.operator.cli("relay", "list", "--json").out)["begun_here"] == []


@pytest.fixture
def hub(lab):
    pytest.importorskip("huggingface_hub")
    with lab.in_operator(), hub_stand_in() as hub:
        yield hub


def test_a_repository_of_a_hub_comes_to_a_host(site, ct129, hub):
    files = {"model.safetensors": noise(10 * MIB), "config.json": b"{}", "sub/empty": b""}
    sha = hub.commit(files)
    env = {"HF_ENDPOINT": hub.url}
    done = site.path("hf://org/drafter@main", f"ct129:{site.workdir(ct129)}/", env=env)
    assert done.code == 0, done.err
    assert "2 files the store tells no sha256" in done.out
    assert {path: ct129.read(f"{site.workdir(ct129)}/drafter/{path}") for path in files} == files
    assert sha in "".join(path for path, _ in hub.requests)


def test_a_gated_repository_is_one_sentence_with_what_to_do(site, hub):
    hub.commit({"config.json": b"{}"})
    hub.gated.add(("model", "org/drafter"))
    done = site.path("hf://org/drafter", "here", env={"HF_ENDPOINT": hub.url})
    assert (done.code, done.err.count("\n"), "HF_TOKEN" in done.err) == (2, 2, True), done.err
