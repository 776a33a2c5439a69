"""A relay under random faults: the final name shows nothing or all of it, every command ends and says how, and little
is sent twice. DFLASHCTL_FAULTS_SEED=N does the same again."""

import os
import random
import time

import pytest

from dflashctl_remote.relay.agent import SILENCE_S
from relay_faults import HANDSHAKES_BYTES, NUM_LANES, Faults
from relay_site import Eye, RelaySite, digests_on
from sshlab import Lab
from sshlab.host import wait_until

RATE = 400e6
END_S = 240.0
"""After its last fault a command is at its end by then: it is done, or has lost its patience."""
QUICK = ("silence", "no sshd", "sessions", "reset", "full", "reboot of the target", "agents", "operator")


@pytest.fixture
def own_lab(ns_lab):
    """With disks that can be filled, and hosts that others do not need."""
    with Lab("namespaces", disk="900m") as up, up.in_operator():
        yield up


def go_through(lab, folder, kinds, *, size_mb, longest_s, seed):
    chance = random.Random(seed)
    site = RelaySite(lab, folder)
    made = site.make(size_mb=size_mb)
    place = site.place(site.target)
    faults = Faults(site, place, chance, longest_s)
    told, ends = [f"seed {seed}"], []
    size_bytes = round(size_mb * 1e6)
    num_rounds, left = 0, list(kinds)

    def end_of(process):
        code = process.wait(timeout=END_S)
        said = process.stderr.read().decode()
        ends.append(code)
        told.append(f"  ended with {code}: {said.strip().splitlines()[-1] if said.strip() else ''}")
        assert code in faults.excuses.codes, said
        assert "Traceback" not in said, said
        assert code in (0, -9) or said.strip(), "it ended without a word"
        return code

    with Eye(site.target, place, made.for_serving) as eye, site.target.rate(RATE):
        try:
            process = None
            while left or ends[-1:] != [0]:
                if process is None:
                    faults.begin()
                    process = site.operator.start_cli(
                        "relay", "ckpt", "--encode", "no", "--connections", str(NUM_LANES)
                    )
                begun = process
                if left:
                    mark = faults.meter.num_bytes + chance.uniform(0, 0.3) * size_bytes
                    moment_s = time.monotonic() + chance.uniform(2.0, 6.0)
                    wait_until(
                        lambda begun=begun, mark=mark, moment_s=moment_s: (
                            begun.poll() is not None or faults.meter.num_bytes > mark or time.monotonic() > moment_s
                        ),
                        "neither bytes nor an end",
                        60.0,
                    )
                    if process.poll() is None:
                        told.append(faults.do(left.pop(), process))
                if not left or process.poll() is not None:
                    if end_of(process) == 0:
                        num_rounds += 1
                        assert {p: s for p, s in digests_on(site.target, place).items() if p != "manifest.json"} == (
                            made.for_serving
                        )
                        if left:
                            site.target.exec(f"mv {place} {place}.gone && rm -rf {place}.gone")
                    process = None
            sent = faults.meter.num_bytes
            told.append(f"{num_rounds} times there, {sent / 1e6:.0f} MB for {num_rounds * size_bytes / 1e6:.0f} MB")
            assert sent < 1.06 * (num_rounds * size_bytes + faults.excuses.num_bytes) + HANDSHAKES_BYTES
        finally:
            site.operator.end_started()
            print("\n".join(told))
    assert eye.wrong == []
    assert eye.num_looks > 0
    assert site.debris(site.target, site.workdir(site.target)) == []
    site.make("r2", 1)
    assert site.ckpt().code == 0
    # One whose link fell silent has its pin until it notices.
    wait_until(lambda: site.pins() == [], "a pin is left", SILENCE_S + 20.0)


@pytest.mark.slow
def test_a_hundred_random_faults(own_lab, tmp_path):
    seed = int(os.environ.get("DFLASHCTL_FAULTS_SEED", "0")) or random.randrange(1, 10**6)
    chance = random.Random(seed)
    kinds = [kind for _ in range(10) for kind in (*QUICK, "reboot of the source", "slow leg")]
    kinds[:3] = ["touched"] * 3
    chance.shuffle(kinds)
    go_through(own_lab, tmp_path, kinds, size_mb=300, longest_s=20.0, seed=seed)


def test_one_fault_of_each_kind(own_lab, tmp_path):
    kinds = list(QUICK)
    random.Random(1).shuffle(kinds)
    go_through(own_lab, tmp_path, kinds, size_mb=64, longest_s=2.0, seed=1)
