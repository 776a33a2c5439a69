"""`relay path`: any file or folder, from anywhere to anywhere, whatever its names are."""

import json
import shlex

import pytest

from relay_site import MIB, RelaySite, digests_of, digests_on, listing, put, wire_bytes
from sshlab.host import wait_until

pytestmark = pytest.mark.usefixtures("ns_lab")


@pytest.fixture
def site(lab, tmp_path):
    made = RelaySite(lab, tmp_path)
    yield made
    made.operator.end_started()


@pytest.fixture
def home(site):
    """The tests' own folder on each host."""
    for host in (site.source, site.target):
        host.exec(["mkdir", "-p", site.workdir(host)])
    return site.workdir(site.source)


def shape(host, place):
    """Kind, name, and of files mode, size and time in seconds, of links the goal."""
    told = '-type d -printf "d %P\\0" -o -type l -printf "l %P %l\\0" -o -printf "f %m %s %Ts %P\\0"'
    text = f'cd "$1" && find . -mindepth 1 {told} | sort -z'
    return host.exec(["/bin/sh", "-c", text, "sh", place]).out


def test_names_of_all_kinds_come_as_they_are(site, home, kpro6, ct129, tmp_path):
    folder = tmp_path / "odd"
    names = [
        "with a space", "*", "it's \"quoted\"", "line\nbreak", "tab\there",
        "unicode \u00fc \u4e2d \U0001f600", "-rf", "$HOME `id`",
        "back\\slash", ".hidden", "not utf-8 \udcff", "deep/er/and deeper/file",
    ]  # fmt: skip
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode("utf-8", "surrogateescape") * number)
    (folder / "empty folder/in it").mkdir(parents=True)
    (folder / "deep/link").symlink_to("../with a space")
    (folder / "with a space").chmod(0o750)
    put(kpro6, folder, f"{home}/o'd d\n")
    done = site.path(f"kpro6:{home}/o'd d\n", f'ct129:{home}/new "one"/')
    assert done.code == 0, done.err
    place = f'{home}/new "one"/o\'d d\n'
    assert digests_on(ct129, place) == digests_of(folder)
    assert shape(ct129, place) == shape(kpro6, f"{home}/o'd d\n")
    assert site.debris(ct129, home) == []
    again = site.path(f"kpro6:{home}/o'd d\n", f'ct129:{home}/new "one"/')
    assert (again.code, "already" in again.out) == (0, True), again.err


def test_two_thousand_small_files_and_empty_ones(site, home, kpro6, ct129, tmp_path):
    folder = tmp_path / "many"
    for number in range(2000):
        path = folder / f"{number % 40}" / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d" % number * (number % 50))
    put(kpro6, folder, f"{home}/many")
    done = site.path(f"kpro6:{home}/many", f"ct129:{home}/many")
    assert done.code == 0, done.err
    assert digests_on(ct129, f"{home}/many") == digests_of(folder)


def test_a_sparse_file_stays_sparse_and_its_holes_are_not_sent(site, home, kpro6, ct129):
    kpro6.exec(f"mkdir {home}/s && truncate -s 900M {home}/s/big")
    kpro6.exec(f"printf middle | dd of={home}/s/big bs=1 seek=400000000 conv=notrunc")
    before = wire_bytes(ct129, "in")
    done = site.path(f"kpro6:{home}/s/", f"ct129:{home}/t", timeout_s=240)
    assert done.code == 0, done.err
    size, blocks = ct129.exec(["stat", "-c", "%s %b", f"{home}/t/big"]).out.split()
    assert (int(size), int(blocks) * 512 <= 16 * MIB) == (900 * MIB, True)
    assert wire_bytes(ct129, "in") - before < 20 * MIB
    assert ct129.exec(f"tail -c +400000001 {home}/t/big | head -c 6").out == "middle"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        ("ln -s /etc/passwd out", "symbolic link out of its folder"),
        ("ln -s ../beside out", "symbolic link out of its folder"),
        ("mkdir -p top p/q; ln -s ../../top p/q/s; ln -s p/q/s/../../x out", "symbolic link out of its folder"),
        ("mkfifo pipe", "neither file, folder nor link"),
    ],
)
def test_what_cannot_be_relayed_is_refused(site, home, kpro6, ct129, make, said):
    kpro6.exec(f"mkdir {home}/t && cd {home}/t && echo 1 >one && {make}")
    before = listing(ct129, home)
    done = site.path(f"kpro6:{home}/t", f"ct129:{home}/t")
    assert (done.code, said in done.err, "Traceback" in done.err) == (5, True, False), done.err
    assert listing(ct129, home) == before


def test_a_file_to_a_file_and_into_a_folder(site, home, kpro6, ct129):
    kpro6.write(f"{home}/a b.txt", "content", mode=0o640)
    assert site.path(f"kpro6:{home}/a b.txt", f"ct129:{home}/c d.txt").code == 0
    assert site.path(f"kpro6:{home}/a b.txt", f"ct129:{home}/in/").code == 0
    assert [ct129.read(f"{home}/{name}") for name in ("c d.txt", "in/a b.txt")] == [b"content"] * 2
    assert ct129.exec(["stat", "-c", "%a %F", f"{home}/c d.txt"]).out == "640 regular file\n"
    kpro6.write(f"{home}/a b.txt", "new")
    done = site.path(f"kpro6:{home}/a b.txt", f"ct129:{home}/c d.txt")
    assert (done.code, "is not the same" in done.err) == (2, True), done.err
    assert ct129.read(f"{home}/c d.txt") == b"content"
    assert site.path(f"kpro6:{home}/a b.txt", f"ct129:{home}/c d.txt", "--replace").code == 0
    assert ct129.read(f"{home}/c d.txt") == b"new"
    assert site.debris(ct129, home) == []


@pytest.mark.parametrize(
    ("source", "code", "said"),
    [("kpro6:/root/nothing here", 5, "there is no such"), ("kpro6:relative", 2, "absolute or below ~/"),
     ("nobody:/x", 2, "nobody is not in hosts.yaml")],
)  # fmt: skip
def test_sources_that_are_not_there(site, home, source, code, said):
    done = site.path(source, f"ct129:{home}/x")
    assert (done.code, said in done.err, "Traceback" in done.err) == (code, True, False), done.err


@pytest.mark.slow
def test_an_empty_folder_an_empty_file_and_a_way_by_a_link(site, home, kpro6, ct129):
    kpro6.exec(f"mkdir {home}/none && : >{home}/zero && ln -s none {home}/link")
    for name in ("none", "zero", "link"):
        done = site.path(f"kpro6:{home}/{name}", f"ct129:{home}/new/folders/{name}")
        assert done.code == 0, done.err
    text = "cd new && find . -printf '%y %m %s %P\\n' | sed 's/^d \\(...\\) [0-9]*/d \\1/' | sort"
    told = ct129.exec(f"cd {home} && {text}").out.splitlines()
    assert told == ["d 755 ", "d 755 folders", "d 755 folders/link", "d 755 folders/none", "f 644 0 folders/zero"]


def test_from_this_machine_and_back(site, home, ct129, tmp_path):
    folder = tmp_path / "here"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub/a").write_bytes(b"a" * 100_000)
    done = site.path(str(folder), f"ct129:{home}/there", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["num_files"] == 1
    assert digests_on(ct129, f"{home}/there") == digests_of(folder)
    done = site.path(f"ct129:{home}/there", str(tmp_path / "back"))
    assert done.code == 0, done.err
    assert digests_of(tmp_path / "back") == digests_of(folder)


def test_within_one_host_nothing_passes_through_here(site, home, kpro6):
    kpro6.exec(f"mkdir {home}/t && head -c 30000000 /dev/urandom >{home}/t/data && truncate -s 100M {home}/t/hole")
    before = wire_bytes(kpro6, "in") + wire_bytes(kpro6, "out")
    done = site.path(f"kpro6:{home}/t", f"kpro6:{home}/u")
    assert done.code == 0, done.err
    assert digests_on(kpro6, f"{home}/u") == digests_on(kpro6, f"{home}/t")
    assert wire_bytes(kpro6, "in") + wire_bytes(kpro6, "out") - before < 2 * MIB
    assert int(kpro6.exec(["stat", "-c", "%b", f"{home}/u/hole"]).out) * 512 < 10 * MIB


def started(site, kpro6, *words):
    """A relay over a slow link, in the middle of moving 30 MB."""
    process = site.operator.start_cli("relay", "path", *words, "--encode", "no")
    dest = words[1].partition(":")[2]
    site.wait_for_chunks(dest, 1)
    return process


def test_a_file_that_changes_while_it_is_read_comes_as_it_is_at_the_end(site, home, kpro6, ct129):
    kpro6.exec(f"mkdir {home}/t && cd {home}/t && head -c 9000000 /dev/urandom >a && head -c 25000000 /dev/urandom >b")
    with ct129.rate(80e6):
        process = started(site, kpro6, f"kpro6:{home}/t", f"ct129:{home}/t")
        kpro6.exec(f"printf changed | dd of={home}/t/b bs=1 seek=20000000 conv=notrunc")
        before = wire_bytes(ct129, "in")
        assert process.wait(timeout=120) == 0, process.stderr.read()
    assert b"b was changed" in process.stderr.read()
    assert digests_on(ct129, f"{home}/t") == digests_on(kpro6, f"{home}/t")
    assert wire_bytes(ct129, "in") - before < 1.15 * 34e6 + 8 * MIB


@pytest.mark.slow
def test_a_file_that_changed_after_it_was_read_comes_as_it_is_at_the_end(site, home, kpro6, ct129):
    """Its time and size stay the same: only what it holds tells."""
    kpro6.exec(f"mkdir {home}/t && cd {home}/t && head -c 9000000 /dev/urandom >a && head -c 25000000 /dev/urandom >b")
    with ct129.rate(80e6):
        process = started(site, kpro6, f"kpro6:{home}/t", f"ct129:{home}/t")
        before = digests_on(kpro6, f"{home}/t")
        text = "touch -r a stamp && printf changed | dd of=a bs=1 seek=100 conv=notrunc && touch -r stamp a && rm stamp"
        kpro6.exec(f"cd {home}/t && {text}")
        assert process.wait(timeout=120) == 0, process.stderr.read()
    there, after = digests_on(ct129, f"{home}/t"), digests_on(kpro6, f"{home}/t")
    assert there["b"] == after["b"]
    # The file as it was before or after, whole; never a mixture.
    assert there["a"] in (before["a"], after["a"])


def test_a_file_that_vanishes_is_said_and_nothing_is_published(site, home, kpro6, ct129):
    kpro6.exec(f"mkdir {home}/t && cd {home}/t && head -c 9000000 /dev/urandom >a && head -c 25000000 /dev/urandom >b")
    kpro6.exec(f"cd {home}/t && echo c >c && head -c 9000000 /dev/urandom >d")
    with ct129.rate(80e6):
        process = started(site, kpro6, f"kpro6:{home}/t", f"ct129:{home}/t")
        kpro6.exec(["rm", f"{home}/t/d"])
        assert process.wait(timeout=120) == 5
    said = process.stderr.read().decode()
    assert ("gone" in said, shlex.quote(f"{home}/t/d") in said, "Traceback" in said) == (True, True, False), said
    assert not ct129.exists(f"{home}/t")
    # What came of the others counts, once it is settled what shall come.
    assert site.path(f"kpro6:{home}/t", f"ct129:{home}/t").code == 0
    wait_until(lambda: site.debris(ct129, home) == [], "debris")
    assert digests_on(ct129, f"{home}/t") == digests_on(kpro6, f"{home}/t")
