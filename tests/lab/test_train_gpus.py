"""GPUs on a host whose driver is a stand-in: it answers as nvidia-smi does, and counts as in use what the test says."""

import json

import pytest

from training import TRAINS, Site

UUIDS = [f"GPU-{number}1111111-2222-3333-4444-555555555555" for number in range(2)]
SMI = """#!/bin/sh
case "$1" in
  --query-gpu=index,uuid,name,memory.used,memory.total)
    echo "0, {0}, NVIDIA RTX PRO 6000 Blackwell Server Edition, $(cat /tmp/used0 2>/dev/null || echo 2), 97887"
    echo "1, {1}, NVIDIA RTX PRO 6000 Blackwell Server Edition, 2, 97887";;
  --query-gpu=uuid,memory.used) echo "{0}, 2"; echo "{1}, 2";;
  --query-gpu=uuid,name,*)
    echo "{0}, NVIDIA RTX PRO 6000, 97, 40000, 97887, 580.50, 61"
    echo "{1}, X, [N/A], 2, 97887, [N/A], 30";;
  --query-compute-apps=*) ;;
  *) exit 2;;
esac
""".format(*UUIDS)


@pytest.fixture
def site(ns_lab, tmp_path, ct129):
    ct129.write("/usr/local/bin/nvidia-smi", SMI, mode=0o755)
    made = Site(ns_lab, tmp_path)
    yield made
    made.operator.end_started()
    ct129.exec("rm -f /usr/local/bin/nvidia-smi /tmp/used0")


def start(site, run, *more):
    return site.start("ct129", run, TRAINS, "--set", "train.device=auto", "--json", *more)


def test_each_run_is_given_a_gpu_of_its_own_and_no_more_than_there_are(site, ct129):
    first, second = (json.loads(start(site, run).out)["gpus"] for run in ("r1", "r2"))
    assert sorted(first + second) == UUIDS
    third = start(site, "r3")
    assert third.code == 2
    assert "no GPU of ct129 is free (0: leased by run r1; 1: leased by run r2)" in third.err
    (job,) = [p for p in site.processes("ct129", "r2") if "dflashctl_remote.entry.train" in p.argv]
    assert job.environ["CUDA_VISIBLE_DEVICES"] == second[0]
    site.stop("ct129", "r1")
    assert json.loads(start(site, "r4").out)["gpus"] == first


def test_a_gpu_that_another_run_has_is_refused_by_name(site):
    start(site, "r1", "--gpu", "1")
    refused = start(site, "r2", "--gpu", UUIDS[1])
    assert refused.code == 2
    assert f"GPU {UUIDS[1]} of ct129 is leased by run r1" in refused.err
    assert "train stop r1 --host ct129" in refused.err


def test_the_lease_of_a_run_that_was_killed_is_taken_over(site, ct129):
    start(site, "r1", "--gpu", "0")
    ct129.end_jobs()
    assert site.states("ct129")["r1"] == "ended without a word"
    assert json.loads(start(site, "r2", "--gpu", "0").out)["gpus"] == [UUIDS[0]]


def test_a_gpu_that_a_stranger_uses_is_passed_over(site, ct129):
    ct129.write("/tmp/used0", "43000")
    assert json.loads(start(site, "r1").out)["gpus"] == [UUIDS[1]]
    full = start(site, "r2")
    assert "0: 42.0 GiB in use by a process that is not ours; 1: leased by run r1" in full.err


def test_one_that_there_is_not_is_refused_with_those_that_are(site):
    done = start(site, "r1", "--gpu", "7")
    assert done.code == 2
    assert f"ct129 has no GPU 7; it has: 0 ({UUIDS[0]}), 1 ({UUIDS[1]})" in done.err
