"""Checkpoints of one run, one after another: only what changed is sent, as difference where both ends have the base."""

import json

import numpy as np
import pytest

from dflashctl_remote.spec.manifest import write_manifest
from relay_site import Made, RelaySite, bf16, digests_of, digests_on, put, safetensors, wire_bytes

pytestmark = pytest.mark.usefixtures("ns_lab")
NUM_BYTES = 8 * 1024 * 1024
"""Of each tensor."""
SLACK_BYTES = 600_000
"""Of connections, questions and what is about the bytes, and the small files."""


class RunSite(RelaySite):
    """A run that trains one of its tensors and leaves the other as it was."""

    def step(self, number, *, moved=1e-3):
        numbers = np.random.default_rng(7)
        frozen, weight = bf16(numbers, (4096, 1024)), bf16(numbers, (4096, 1024))
        numbers = np.random.default_rng(number)
        for _ in range(number):
            # As an optimizer does: most values stay within rounding, a few change in their last bits.
            mask = numbers.random(weight.shape, dtype=np.float32) < moved
            weight = weight ^ mask.astype(np.uint16)
        folder = self.folder / f"step-{number}"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(safetensors({"frozen": frozen, "weight": weight}))
        write_manifest(folder, "checkpoint", bundle_sha="0" * 12, about={"step": number})
        put(self.source, folder, self.place(self.source, "r1", number))
        return Made("r1", number, digests_of(folder))

    def relay(self, made, *words):
        """What is told of it, and what went over the target's own link for it."""
        before = wire_bytes(self.target, "in")
        done = self.ckpt(f"r1@{made.step}", "--json", *words)
        assert done.code == 0, done.err
        there = digests_on(self.target, self.place(self.target, "r1", made.step))
        assert there == made.all
        return json.loads(done.out), wire_bytes(self.target, "in") - before


@pytest.fixture
def site(lab, tmp_path):
    made = RunSite(lab, tmp_path)
    yield made
    made.operator.end_started()


def test_what_stays_is_copied_and_what_changes_goes_as_difference(site):
    first, second, third = (site.step(number) for number in (1, 2, 3))
    told, _ = site.relay(first, "--encode", "always")
    assert (set(told["hows"]) <= {"planes", "raw"}, told["hows"]["planes"]) == (True, 2 * NUM_BYTES)
    told, wire = site.relay(second, "--encode", "always")
    assert (told["hows"]["same"], told["hows"]["base"]) == (NUM_BYTES, NUM_BYTES)
    assert told["sent_bytes"] < NUM_BYTES / 20
    assert wire < told["sent_bytes"] * 1.1 + SLACK_BYTES
    done = site.ckpt("r1@3", "--encode", "always")
    assert "8.0 MiB copied from what was there, 8.0 MiB as difference" in done.out
    assert digests_on(site.target, site.place(site.target, "r1", 3)) == third.all


def test_where_the_source_has_pruned_the_earlier_one_the_change_goes_whole_and_the_rest_is_copied(site, kpro6):
    first, second = site.step(1), site.step(2)
    site.relay(first)
    kpro6.exec(["rm", "-r", site.place(kpro6, "r1", 1)])
    told, wire = site.relay(second, "--encode", "no")
    assert (told["hows"]["same"], told["hows"]["raw"]) == (NUM_BYTES, told["total_bytes"] - NUM_BYTES)
    assert NUM_BYTES < wire < NUM_BYTES + SLACK_BYTES


@pytest.mark.slow
def test_where_the_target_has_pruned_the_earlier_one_all_goes(site, ct129):
    first, second = site.step(1), site.step(2)
    site.relay(first)
    ct129.exec(["rm", "-r", site.place(ct129, "r1", 1)])
    told, wire = site.relay(second, "--encode", "no")
    assert (set(told["hows"]), told["sent_bytes"]) == ({"raw"}, told["total_bytes"])
    assert 2 * NUM_BYTES < wire < 2 * NUM_BYTES + 2 * SLACK_BYTES


def test_a_checkpoint_of_which_nothing_changed_costs_nothing(site):
    first, second = site.step(1, moved=0.0), site.step(2, moved=0.0)
    site.relay(first)
    told, wire = site.relay(second)
    assert told["hows"]["same"] == 2 * NUM_BYTES
    assert wire < SLACK_BYTES


def test_a_base_that_was_damaged_at_the_target_is_found_out_and_done_without(site, ct129):
    """Its manifest is right, its bytes are not any more: the difference to them is nonsense."""
    first, second = site.step(1), site.step(2)
    site.relay(first)
    ct129.exec(f"printf xxxx | dd of={site.place(ct129, 'r1', 1)}/model.safetensors bs=1 seek=12000000 conv=notrunc")
    done = site.ckpt("r1@2", "--encode", "always")
    assert (done.code, "all is sent in full" in done.err) == (0, True), done.err
    assert digests_on(ct129, site.place(ct129, "r1", 2)) == second.all
