from pathlib import Path

import pytest

from dflashctl.facts.disks import disk_findings
from dflashctl.facts.finding import Told

RECORDED = Path(__file__).parent / "recorded"


def recorded(**changes):
    told = Told.read((RECORDED / "system-busybox.txt").read_bytes())
    pairs = tuple(pair for pair in told.pairs if pair[0] not in changes)
    added = tuple((key, value) for key, value in changes.items() if value is not None)
    return {finding.topic: finding for finding in disk_findings(Told(pairs + added))}


def blocks(free_kib):
    return f"//nas/my share 264212084 50793864 {free_kib} 48% /mnt/my share"


def test_room_is_told_of_the_folder_above_one_that_is_not_there_yet():
    finding = recorded()["work folder"]
    assert finding.level == "ok"
    assert finding.text == "/root/dflashctl-work (not there yet): 53 GiB of 252 GiB free"


@pytest.mark.parametrize(
    ("changes", "level", "said"),
    [
        ({"workdir_writable": None}, "bad", "cannot be written (nor made in /root)"),
        ({"workdir_writable": None, "workdir_above": "/root/dflashctl-work"}, "bad", "-work cannot be written"),
        ({"workdir_blocks": blocks(0)}, "bad", "0.0 GiB of 252 GiB free"),
        ({"workdir_blocks": blocks(-4096)}, "bad", "0.0 GiB of"),
        ({"workdir_blocks": blocks(30 * 2**20)}, "note", "30 GiB of 252 GiB free; a checkpoint"),
        ({"workdir_files": "/dev/vda 16777216 16777200 16 100% /"}, "bad", "only 16 files more fit"),
        ({"workdir_files": "tmpfs 0 0 0 0% /"}, "ok", ""),
        ({"workdir_type": "nfs"}, "note", "nfs: locks"),
        ({"workdir_type": "tmpfs"}, "note", "gone after a reboot"),
        ({"workdir_type": "overlayfs"}, "note", "gone with the container"),
        ({"workdir_blocks": ""}, "unknown", "df does not tell"),
        ({"workdir_exists": "1"}, "ok", "/root/dflashctl-work: "),
    ],
)
def test_work_folder_is_judged(changes, level, said):
    finding = recorded(**changes)["work folder"]
    assert (finding.level, said in finding.text) == (level, True), finding


def test_cure_quotes_a_folder_that_needs_it():
    finding = recorded(workdir="/data/my 'runs'", workdir_writable=None)["work folder"]
    assert """mkdir -p '/data/my '"'"'runs'"'"''""" in finding.cure


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({}, "ok"),
        ({"temporary_writable": None}, "note"),
        ({"temporary_exists": None}, "note"),
        ({"temporary_blocks": blocks(1000)}, "note"),
        ({"temporary_blocks": "df: /tmp: No such file"}, "unknown"),
    ],
)
def test_temporary_folder_is_needed_by_torch_and_not_by_us(changes, level):
    assert recorded(**changes)["temporary"].level == level
