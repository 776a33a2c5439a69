"""Relays that are stopped, run out of room, meet another or lose their source in the middle, and are resumed."""

import json
import shlex
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from dflashctl.cli.output import Output
from dflashctl.cli.run_relay import Relay
from dflashctl.errors import HostUnreachable
from dflashctl.operations.relay.progress import Progress
from dflashctl.operations.relay.transfer import move
from dflashctl.operations.relay.tries import DELAYS_S
from dflashctl.stages.relay.checkpoint import CheckpointJob
from relay_site import CHUNK_BYTES, MIB, RelaySite, digests_on, listing, outside, wire_bytes
from sshlab.host import wait_until

pytestmark = pytest.mark.usefixtures("ns_lab")
AHEAD = 3
SLOW = 120e6
"""Bits a second: 40 MB are under way for some 3 s."""


@pytest.fixture
def site(lab, tmp_path):
    made = RelaySite(lab, tmp_path)
    yield made
    made.operator.end_started()


def begin(site, *words, num_chunks=1):
    """A relay of the newest checkpoint, so far that some of its chunks are there."""
    process = site.operator.start_cli("relay", "ckpt", "--encode", "no", *words)
    site.wait_for_chunks(site.place(site.target), num_chunks)
    return process


def is_whole(site, made):
    there = digests_on(site.target, site.place(site.target, made.run, made.step))
    there.pop("manifest.json", None)
    assert there == made.for_serving
    assert site.debris(site.target, site.workdir(site.target)) == []
    assert site.pins() == []
    return True


def resume(site, made, *, size_bytes, words=("ckpt", "--encode", "no")):
    """Run again; only what was not there goes over the wire."""
    num_kept = site.num_full(site.place(site.target))
    before = wire_bytes(site.target, "in")
    done = site.operator.cli("relay", *words, "--json", timeout_s=180)
    assert done.code == 0, done.err
    sent = wire_bytes(site.target, "in") - before
    assert num_kept > 0
    # The last chunk is smaller than the others.
    assert sent < 1.05 * max(0, size_bytes - num_kept * CHUNK_BYTES) + MIB
    assert json.loads(done.out)["kept_bytes"] > (num_kept - 1) * CHUNK_BYTES
    assert is_whole(site, made)


@pytest.mark.parametrize("words", [pytest.param(("ckpt", "--encode", "no"), marks=pytest.mark.slow), ("resume",)])
def test_ctrl_c_keeps_what_has_come_for_the_next_time(site, ct129, words):
    made = site.make(size_mb=40)
    with ct129.rate(SLOW):
        process = begin(site)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        said = process.stderr.read().decode()
        assert ("what has come stays there" in said, "relay resume" in said, "Traceback" in said) == (True, True, False)
        assert digests_on(ct129, site.place(ct129)) == {}
        wait_until(lambda: site.pins() == [] and not site.agents(ct129), "agents outlive their operator", 30)
        resume(site, made, size_bytes=40e6, words=words)


def test_an_operator_that_is_killed_leaves_agents_that_end_and_chunks_that_count(site, kpro6, ct129):
    made = site.make(size_mb=40)
    with ct129.rate(SLOW):
        process = begin(site)
        process.kill()
        process.wait()
        wait_until(lambda: site.pins() == [] and not site.agents(kpro6) + site.agents(ct129), "agents are left", 60)
        resume(site, made, size_bytes=40e6)


@pytest.mark.parametrize("end", [pytest.param("kpro6", marks=pytest.mark.slow), "ct129"])
def test_agents_that_are_killed_are_begun_anew(site, ct129, end):
    made = site.make(size_mb=40)
    with ct129.rate(SLOW):
        process = begin(site)
        for agent in site.agents(site.lab.hosts[end]):
            site.lab.hosts[end].signal(agent, signal.SIGKILL)
        assert process.wait(timeout=120) == 0, process.stderr.read()
    assert b"trying again" in process.stderr.read()
    assert is_whole(site, made)


def test_a_checkpoint_that_is_pruned_in_the_middle_still_comes(site, kpro6, ct129):
    made = site.make(size_mb=40)
    with ct129.rate(SLOW):
        process = begin(site)
        assert len(site.pins()) == 1
        kpro6.exec(["rm", "-rf", f"{site.workdir(kpro6)}/runs/r1"])
        assert process.wait(timeout=120) == 0, process.stderr.read()
    assert is_whole(site, made)


def test_a_disk_that_is_too_small_is_told_before_anything_is_sent(site, ct129):
    site.make(size_mb=40)
    with ct129.small_disk(site.workdir(ct129), "30m"):
        site.ckpt("--dry-run")
        before, sent = listing(ct129, site.workdir(ct129)), wire_bytes(ct129, "in")
        done = site.ckpt()
        assert (done.code, "Traceback" in done.err) == (4, False), done.err
        assert "MiB free, and 38.1 MiB are still to come" in done.err
        assert wire_bytes(ct129, "in") - sent < MIB
        assert listing(ct129, site.workdir(ct129)) == before


def test_a_disk_that_fills_in_the_middle_ends_it_and_loses_nothing(site, ct129):
    made = site.make(size_mb=40)
    with ct129.small_disk(site.workdir(ct129), "60m"), ct129.rate(SLOW):
        process = begin(site)
        filler = f"{shlex.quote(site.workdir(ct129))}/filler"
        ct129.exec(f"head -c 100m /dev/zero >{filler}", check=False)
        assert process.wait(timeout=60) == 4
        said = process.stderr.read().decode()
        assert ("No space left" in said, "make room" in said, "Traceback" in said) == (True, True, False), said
        assert digests_on(ct129, site.place(ct129)) == {}
        still_full = site.ckpt("--encode", "no")
        assert (still_full.code, "free, and" in still_full.err) == (4, True), still_full.err
        ct129.exec(f"rm {filler}")
        resume(site, made, size_bytes=40e6)


def test_two_relays_of_one_checkpoint_send_it_once(site, ct129):
    made = site.make(size_mb=40)
    before = wire_bytes(ct129, "in")
    with ct129.rate(SLOW / 2):
        first = begin(site)
        second = site.operator.start_cli("relay", "ckpt", "--encode", "no")
        assert (first.wait(timeout=120), second.wait(timeout=120)) == (0, 0), second.stderr.read()
    assert b"another relay is at work there" in second.stderr.read()
    assert b"already, and the same: nothing was sent" in second.stdout.read()
    assert wire_bytes(ct129, "in") - before < 1.05 * 40e6 + 2 * MIB
    assert is_whole(site, made)


def test_ctrl_c_over_a_dead_link_ends_soon(site, ct129):
    site.make(size_mb=40)
    with ct129.rate(SLOW):
        process = begin(site)
        with ct129.link_down():
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=25) == 130
    assert digests_on(ct129, site.place(ct129)) == {}


@pytest.mark.slow
def test_a_publication_that_was_cut_short_is_done_again(lab, tmp_path, ct129):
    """Files have their final modes by then, and nobody but root writes to one that is for reading alone."""
    site = RelaySite(lab, tmp_path, ct129={"user": "train"}, kpro6={"user": "train"})
    home = f"/home/train/{tmp_path.name}"
    kpro6 = site.source
    kpro6.exec(f"mkdir -p {home}/t/sub && cd {home}/t && echo 1 >a && ln -s sub link && chmod 400 a", user="train")
    kpro6.exec(f"echo 2 >{home}/t/sub/b", user="train")
    part = f"{home}/.t.relay-part"
    ct129.exec(f"mkdir -p {part}/tree/sub {part}/tree/old && cd {part}/tree && echo 0 >a && chmod 400 a", user="train")
    ct129.exec(f"cd {part}/tree && ln -s sub link && touch old/x && : >../journal && : >../writers", user="train")
    done = site.path(f"kpro6:{home}/t", f"ct129:{home}/t")
    assert done.code == 0, done.err
    text = f"cd {home}/t && find . -printf '%M %p %l\\n' | sed 1d | sort"
    assert ct129.exec(text).out.replace("drwxr-xr-x", "d") == kpro6.exec(text).out.replace("drwxr-xr-x", "d")
    assert digests_on(ct129, f"{home}/t") == digests_on(kpro6, f"{home}/t")
    assert site.debris(ct129, home) == []


@pytest.mark.slow
def test_a_journal_with_half_a_line_loses_no_more_than_that(site, ct129):
    made = site.make(size_mb=40)
    with ct129.rate(SLOW):
        process = begin(site, num_chunks=2)
        process.kill()
        process.wait()
    wait_until(lambda: not site.agents(ct129), "agents are left", 60)
    journal = outside(ct129, f"{site.part(ct129, site.place(ct129))}/journal")
    with journal.open("ab") as file:
        file.write(b"0123456789")
    resume(site, made, size_bytes=40e6)


@pytest.mark.slow
def test_a_target_that_was_rebooted_sends_again_only_what_was_not_on_its_disk(site, ct129):
    made = site.make(size_mb=40)
    with ct129.rate(SLOW):
        process = begin(site)
        journal = outside(ct129, f"{site.part(ct129, site.place(ct129))}/journal")
        wait_until(lambda: b"synced" in journal.read_bytes() or process.poll() is not None, "nothing was synced", 30)
        process.kill()
        process.wait()
        ct129.reboot()
    text = outside(ct129, f"{site.part(ct129, site.place(ct129))}/journal").read_text()
    marks = [line for line in text.splitlines() if line.startswith("synced")]
    safe = text[: int(marks[-1].split()[1])].splitlines() if marks else []
    num_safe = max(0, sum(" " not in line for line in safe) - 2)
    before = wire_bytes(ct129, "in")
    done = site.ckpt("--encode", "no", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["kept_bytes"] >= min(num_safe * CHUNK_BYTES, 40_000_000)
    assert wire_bytes(ct129, "in") - before < 1.05 * max(0, 40e6 - num_safe * CHUNK_BYTES) + 2 * MIB
    assert is_whole(site, made)


@pytest.mark.slow
def test_bytes_that_rot_on_the_targets_disk_are_found_and_sent_again(site, ct129):
    made = site.make(size_mb=40)
    with ct129.rate(SLOW):
        process = begin(site)
        process.kill()
        process.wait()
    wait_until(lambda: not site.agents(ct129), "agents are left", 60)
    path = f"{site.part(ct129, site.place(ct129))}/tree/model.safetensors"
    ct129.exec(f"printf rot | dd of={shlex.quote(path)} bs=1 seek=1000000 conv=notrunc")
    done = site.ckpt("--encode", "no")
    assert done.code == 0, done.err
    assert "model.safetensors did not come as it was sent: that is sent again" in done.err
    assert is_whole(site, made)


@pytest.mark.slow
def test_what_somebody_puts_there_meanwhile_is_not_replaced(site, ct129):
    made = site.make(size_mb=40)
    with ct129.rate(SLOW):
        process = begin(site)
        ct129.write(f"{site.place(ct129)}/notes.txt", "mine")
        assert process.wait(timeout=60) == 2
    assert b"is there already" in process.stderr.read()
    assert list(digests_on(ct129, site.place(ct129))) == ["notes.txt"]
    ct129.exec(["rm", "-r", site.place(ct129)])
    resume(site, made, size_bytes=40e6)


@pytest.mark.slow
def test_a_host_that_does_not_come_back_ends_it_after_some_tries(site, ct129, monkeypatch):
    made = site.make(size_mb=40)
    for name, value in site.operator.env.items():
        monkeypatch.setenv(name, value)
    ends = Relay(site.operator.hosts_file, Output(), (), "no", None).ends("kpro6", "ct129")
    job = CheckpointJob("kpro6", "ct129", ends[0].workdir, ends[1].workdir, None, "latest", encode="no")
    said, pauses = [], []

    def go_away():
        site.wait_for_chunks(site.place(ct129), 1)
        sessions = ct129.below_sshd()
        ct129.stop_sshd()
        for session in sessions:
            ct129.signal_if_there(session, signal.SIGKILL)

    with ct129.rate(SLOW), ThreadPoolExecutor(1) as threads:
        gone = threads.submit(go_away)
        with pytest.raises(HostUnreachable, match="ct129"):
            move(*ends, job, Progress(), said.append, pause=pauses.append)
        gone.result()
    # The try that had moved something is not counted.
    assert pauses == [DELAYS_S[0], *DELAYS_S]
    assert all("trying again in" in line for line in said)
    ct129.start_sshd()
    resume(site, made, size_bytes=40e6)
