"""Checkpoints between hosts that cannot see each other: which one comes, what of it, and what is said."""

import json
import shlex

import pytest

from relay_site import MIB, RelaySite, digests_on, listing, wire_bytes

pytestmark = pytest.mark.usefixtures("ns_lab")
NOISE = "echo welcome; echo 'SENTINEL ready'; stty -a; printf 'no line end'\n"


def slow(value):
    return pytest.param(value, marks=pytest.mark.slow)


@pytest.fixture
def site(lab, tmp_path):
    made = RelaySite(lab, tmp_path)
    yield made
    made.operator.end_started()


def is_whole(site, made):
    """All that serving needs is on the target, nothing else but the manifest, nothing of the relay's own anywhere."""
    there = digests_on(site.target, site.place(site.target, made.run, made.step))
    there.pop("manifest.json", None)
    assert there == made.for_serving
    assert site.debris(site.target, site.workdir(site.target)) == []
    assert site.pins() == []
    return True


def test_the_newest_checkpoint_comes_by_the_defaults_and_is_not_sent_twice(site, ct129):
    site.make("r0", 5)
    made = site.make("r1", 100)
    done = site.ckpt()
    assert done.code == 0, done.err
    assert f"r1@100 is on ct129: {site.place(ct129)}; sent " in done.out
    assert is_whole(site, made)
    manifest = json.loads(ct129.read(f"{site.place(ct129)}/manifest.json"))
    assert manifest["about"] == {"step": 100, "left_behind": ["state/optimizer.bin"]}
    assert {entry["path"]: entry["sha256"] for entry in manifest["files"]} == made.for_serving
    before, sent = listing(ct129, site.workdir(ct129)), wire_bytes(ct129, "in")
    again = site.ckpt("--json")
    assert (again.code, json.loads(again.out)["is_there"]) == (0, True)
    assert wire_bytes(ct129, "in") - sent < MIB / 2
    assert listing(ct129, site.workdir(ct129)) == before


def test_with_state_it_is_a_copy_to_the_last_byte(site, ct129):
    made = site.make()
    done = site.ckpt("r1", "--with-state", "--json")
    assert (done.code, json.loads(done.out)["num_files"]) == (0, 3), done.err
    assert digests_on(ct129, site.place(ct129)) == made.all


def test_a_checkpoint_without_state_keeps_its_manifest_verbatim(site, ct129):
    made = site.make(with_state=False)
    assert site.ckpt().code == 0
    assert digests_on(ct129, site.place(ct129)) == made.all


def test_best_and_a_step_by_its_number(site):
    best, other = site.make(step=100, loss=1.5), site.make(step=200, loss=2.5)
    site.make(step=300, loss=3.5)
    assert site.ckpt("r1@best").code == 0
    assert is_whole(site, best)
    assert site.ckpt("@200").code == 0
    assert is_whole(site, other)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["r2"], 2, "there is no run r2"),
        (["r1@7"], 2, "has no checkpoint 7: complete are 100"),
        (["r1@@7"], 2, "names no checkpoint"),
        (["r1", "--from", "nobody"], 2, "nobody"),
        (["r1", "--to", "kpro6"], 2, "source and destination at once"),
    ],
)
def test_what_is_not_there_is_said_in_a_sentence(site, words, code, said):
    site.make()
    done = site.ckpt(*words)
    assert (done.code, done.err.count("\n") <= 3) == (code, True), done.err
    assert said in done.err


def test_a_step_without_a_manifest_is_told_apart_from_one_that_never_was(site, kpro6, ct129):
    site.make(step=100)
    site.make(step=200)
    kpro6.exec(["rm", f"{site.place(kpro6, step=200)}/manifest.json"])
    done = site.ckpt("r1@200")
    assert (done.code, "r1@200 on kpro6 has no manifest" in done.err) == (5, True), done.err
    assert digests_on(ct129, f"{site.workdir(ct129)}/runs") == {}


def test_a_checkpoint_without_a_manifest_is_none(site, kpro6, ct129):
    site.make()
    kpro6.exec(["rm", f"{site.place(kpro6)}/manifest.json"])
    done = site.ckpt("r1")
    assert (done.code, "run r1 on kpro6 has no complete checkpoint" in done.err) == (5, True), done.err
    assert digests_on(ct129, f"{site.workdir(ct129)}/runs") == {}


def test_content_that_is_not_what_the_manifest_says_is_not_published(site, kpro6, ct129):
    made = site.make()
    path = f"{site.place(kpro6)}/model.safetensors"
    kpro6.exec(f"printf x | dd of={shlex.quote(path)} bs=1 seek=5000 conv=notrunc")
    done = site.ckpt()
    assert (done.code, "model.safetensors is not what its manifest says" in done.err) == (5, True), done.err
    assert digests_on(ct129, f"{site.workdir(ct129)}/runs") == {}
    assert site.debris(ct129, site.workdir(ct129)) == []
    assert made.run == "r1"


def test_what_is_there_and_differs_is_kept_unless_it_is_to_be_replaced(site, ct129):
    made = site.make()
    ct129.write(f"{site.place(ct129)}/notes.txt", "mine")
    done = site.ckpt()
    assert (done.code, "is there already" in done.err, "--replace" in done.err) == (2, True, True), done.err
    assert ct129.read(f"{site.place(ct129)}/notes.txt") == b"mine"
    done = site.ckpt("--replace")
    assert done.code == 0, done.err
    assert is_whole(site, made)


def test_a_protected_target_is_replaced_only_if_it_is_named(lab, tmp_path, ct129):
    site = RelaySite(lab, tmp_path, ct129={"protected": True})
    made = site.make()
    ct129.write(f"{site.place(ct129)}/notes.txt", "mine")
    done = site.ckpt("--replace")
    assert (done.code, "--touch" in done.err) == (2, True), done.err
    assert ct129.read(f"{site.place(ct129)}/notes.txt") == b"mine"
    done = site.ckpt("--replace", "--touch", "ct129")
    assert done.code == 0, done.err
    assert is_whole(site, made)


def test_a_dry_run_changes_nothing(site, kpro6, ct129):
    site.make()
    before = [listing(host, site.workdir(host)) for host in (kpro6, ct129)]
    done = site.ckpt("--dry-run", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["files"] == ["config.json", "model.safetensors"]
    after = [listing(host, site.workdir(host)) for host in (kpro6, ct129)]
    assert after == before


@pytest.mark.parametrize("shell", ["/bin/tcsh", slow("/usr/bin/fish")])
def test_login_shells_of_other_families_at_both_ends(site, kpro6, ct129, shell):
    if not ct129.has(shell):
        pytest.skip(f"no {shell}")
    made = site.make()
    with kpro6.login_shell(shell), ct129.login_shell(shell):
        done = site.ckpt()
    assert done.code == 0, done.err
    assert is_whole(site, made)


@pytest.mark.slow
def test_a_bashrc_that_talks_at_both_ends(site, kpro6, ct129):
    made = site.make()
    with kpro6.bashrc(NOISE), ct129.bashrc(NOISE):
        done = site.ckpt()
    assert done.code == 0, done.err
    assert is_whole(site, made)


def test_a_target_without_python3_is_told_in_a_sentence(site, ct129):
    site.make()
    with ct129.without("python3"):
        done = site.ckpt()
    assert (done.code, "there is no python3" in done.err, "Traceback" in done.err) == (4, True, False), done.err


EVIL = {
    "above": ["../../evil"],
    "absolute": ["/root/evil"],
    "twice": ["config.json", "config.json"],
    "beneath": ["config.json", "config.json/evil"],
    "linked": ["linked/evil"],
    "manifest": ["config.json", "manifest.json/evil"],
    "nul": ["ev\0il"],
    "half a letter": ["ev\ud800il"],
    "nothing": [""],
}


@pytest.mark.parametrize("kind", [kind if kind in ("above", "linked") else slow(kind) for kind in EVIL])
def test_a_manifest_that_means_harm_writes_nothing(site, kpro6, ct129, kind):
    site.make()
    place = site.place(kpro6)
    kpro6.exec(f"mkdir -p /root/outside && echo 12 >/root/outside/evil && ln -s /root/outside {place}/linked")
    kpro6.exec(f"cp /root/outside/evil /root/evil && cp /root/evil {place}/../../evil")
    manifest = json.loads(kpro6.read(f"{place}/manifest.json"))
    entry = next(entry for entry in manifest["files"] if entry["path"] == "config.json")
    manifest["files"] = [{**entry, "path": path, "size_bytes": entry["size_bytes"] if path == "config.json" else 3}
                         for path in EVIL[kind]]  # fmt: skip
    kpro6.write(f"{place}/manifest.json", json.dumps(manifest))
    before = listing(ct129, "/root")
    done = site.ckpt()
    assert (done.code, "Traceback" in done.err) == (5, False), done.err
    changed = set(listing(ct129, "/root").split("\n")) ^ set(before.split("\n"))
    assert [line for line in changed if "evil" in line or "runs" in line] == []


LIES = {
    "more than there is": ("n=size)", "n=size * 1000)", 4),
    "less than there is": ("n=size)", "n=size // 2)", 4),
    "no header": ("wire.header(id=number, how=how, n=size)", "b'x' * 96", 4),
    "another chunk": ("wire.header(id=number,", "wire.header(id=number + 1,", 4),
    "an unknown way": ("how=how, n=size", "how='magic', n=size", 4),
    "other bytes": ("os.sendfile(out, descriptor, offset, length)", "os.sendfile(out, descriptor, 0, length)", 5),
}


@pytest.mark.parametrize("lie", [lie if lie == "more than there is" else slow(lie) for lie in LIES])
def test_a_reader_that_lies_is_found_out(site, kpro6, ct129, lie):
    site.make(size_mb=10)
    old, new, code = LIES[lie]
    site.sabotage(kpro6, "reader.py", old, new)
    done = site.ckpt("--encode", "no")
    assert (done.code, "Traceback" in done.err) == (code, False), done.err
    assert digests_on(ct129, site.place(ct129)) == {}
    assert site.pins() == []


@pytest.mark.slow
def test_a_chief_that_names_a_file_outside_is_refused(site, kpro6, ct129):
    site.make()
    site.sabotage(kpro6, "chief.py", "return [path, *version_of(", 'return ["../../evil", *version_of(')
    done = site.ckpt()
    assert done.code == 5, done.err
    assert "evil" not in listing(ct129, "/root")


@pytest.mark.slow
def test_a_chief_that_names_a_run_outside_is_refused(site, kpro6, ct129):
    site.make()
    site.sabotage(kpro6, "chief.py", '"run": chosen,', '"run": "../../evil",')
    done = site.ckpt()
    assert done.code == 5, done.err
    assert "evil" not in listing(ct129, "/root")


def test_an_earlier_checkpoint_that_has_rotted_is_not_built_upon(site, ct129):
    """Its difference to the next is what would be sent."""
    site.make(step=100, size_mb=20)
    assert site.ckpt().code == 0
    made = site.make(step=200, size_mb=20, seed=-100, drift=0.1)
    path = f"{site.place(ct129)}/model.safetensors"
    ct129.exec(f"printf rot | dd of={shlex.quote(path)} bs=1 seek=9000000 conv=notrunc")
    done = site.ckpt("--encode", "always")
    assert done.code == 0, done.err
    assert "all is sent in full" in done.err
    assert is_whole(site, made)
