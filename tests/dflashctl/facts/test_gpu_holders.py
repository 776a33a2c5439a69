import os
import subprocess
import sys
from pathlib import Path

import pytest

from dflashctl.bundle import bundle_root
from dflashctl.facts import gpu_holders
from dflashctl.facts.finding import Told
from dflashctl.facts.gpu_holders import gpu_findings, read_held_gpus
from dflashctl.transport.files import read_script
from dflashctl.transport.local_shell import LocalShell
from dflashctl.transport.shell import Script

RECORDED = Path(__file__).parent / "recorded"
FACTS = Path(gpu_holders.__file__).parent
SUPERVISOR = bundle_root() / "dflashctl_remote" / "supervisor"
SHELLS = [("/bin/sh", "-s"), ("bash", "--posix", "-s"), ("busybox", "sh", "-s")]


def findings(told):
    return {finding.topic: finding for finding in gpu_findings(told, read_held_gpus(told))}


def recorded(name):
    return findings(Told.read((RECORDED / f"gpu-{name}.txt").read_bytes()))


def told(text):
    return Told.read(text.encode())


def test_run_that_leased_a_gpu_is_told_from_a_stranger_on_it():
    # Recorded on an H200 with two processes, of which one carried the marker of the lease.
    found = recorded("h200-held")
    assert found["driver"].text == "NVIDIA 580.159.04"
    assert found["GPU 0"].level == "note"
    assert found["GPU 0"].text == (
        "NVIDIA H200, 7.2 of 140.4 GiB used: leased by run v5; held by pid 658 of root (python3) "
        "(GPU-11111111-2222-3333-4444-555555555555)"
    )


@pytest.mark.parametrize(
    ("index", "level", "said"),
    [
        (0, "ok", "used: leased by run v5 ("),
        (2, "note", "leased by run v4, of which no process is left"),
        (3, "note", "leased by run a start that wrote down no name, of which"),
        (4, "ok", "used: free, as far as this user sees ("),
        (5, "note", "held by pid 977001 (not visible from here)"),
        (7, "ok", "free, as far as this user sees (open in pid 702 of nvidia-persistenced (nvidia-persiste))"),
    ],
)
def test_holders_of_each_gpu_are_told(index, level, said):
    finding = recorded("rtx-pro-6000")[f"GPU {index}"]
    assert (finding.level, said in finding.text) == (level, True), finding


def test_memory_without_a_process_is_held_by_somebody_not_free():
    finding = recorded("a6000-container")["GPU 0"]
    assert finding.level == "note"
    assert "40.9 of 48.0 GiB used: held by processes not visible from here" in finding.text


def test_gpu_of_which_the_driver_tells_nothing_is_unknown_not_free():
    finding = recorded("a6000-container")["GPU 1"]
    assert finding.level == "unknown"
    assert "unknown of unknown GiB used: the driver does not tell whether it is used" in finding.text


def test_cell_that_is_not_permitted_is_no_figure():
    finding = recorded("insufficient")["GPU 0"]
    assert finding.level == "note"
    assert "unknown of 48.0 GiB used: held by pid 2211 (not visible from here)" in finding.text


def test_driver_that_does_not_fit_its_library_is_bad_with_its_cure():
    found = recorded("mismatch")
    assert list(found) == ["GPUs"]
    assert found["GPUs"].level == "bad"
    assert "Driver/library version mismatch" in found["GPUs"].text
    assert "reboot" in found["GPUs"].cure


@pytest.mark.parametrize(
    ("text", "level", "said"),
    [
        ("", "note", "none: no nvidia-smi"),
        ("gpu_device=0\ngpu_device=1\n", "bad", "2 devices /dev/nvidia* and no nvidia-smi"),
        ("nvidia_smi=x\ngpu=No devices were found\n", "unknown", "No devices were found"),
        ("nvidia_smi=x\ngpu_problem=exit code 137: Killed\n", "bad", "gave no answer and was ended"),
    ],
)
def test_host_that_tells_no_gpu_says_why(text, level, said):
    finding = findings(told(text))["GPUs"]
    assert (finding.level, said in finding.text) == (level, True), finding


def test_process_of_ours_without_a_lease_is_named_by_its_folder():
    uuid = "GPU-0"
    text = (
        f"uid=0\nnvidia_smi=x\ngpu=0, {uuid}, A, 100, 99, 1.0, 8.6\ngpu_app={uuid}, 12, 90\n"
        "process=12 0 root /w/servers/ct129 python\n"
    )
    assert "held by ct129 of ours" in findings(told(text))["GPU 0"].text


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """Runs the script with the given nvidia-smi, and with leases in a work folder whose name needs quotes."""
    workdir = tmp_path / 'it\'s "here"'

    def asked(smi, sh, leases=()):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{smi}\n")
        (folder / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        for name, owner in leases:
            (workdir / "leases" / name).mkdir(parents=True)
            (workdir / "leases" / name / "owner").write_text(owner)
        text = read_script(SUPERVISOR, "proc.sh", "lease.sh") + read_script(FACTS, "doctor.sh", "gpu_holders.sh")
        script = Script("gpus", f"{text}\nlease_root=\ntell_gpu_holders\n", (("workdir", str(workdir)),))
        return Told.read(LocalShell(sh=sh).run(script).out)

    return asked


ONE_GPU = """case "$*" in
*compute-apps*) echo 'GPU-a, PID, 50' ;;
*compute_cap*) echo 'Field "compute_cap" is not a valid field to query.'; exit 2 ;;
*) echo '0, GPU-a, NVIDIA RTX A6000, 49140, 4, 470.1' ;;
esac"""


@pytest.mark.parametrize("sh", SHELLS)
def test_driver_that_knows_no_compute_capability_is_asked_without(ask, sh):
    (gpu,) = read_held_gpus(ask(ONE_GPU, sh))
    assert (gpu.uuid, gpu.driver, gpu.compute_capability) == ("GPU-a", "470.1", "")


@pytest.mark.parametrize("sh", SHELLS)
def test_failure_of_nvidia_smi_is_told_in_its_own_words(ask, sh):
    told = ask("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", sh)
    assert told.one("gpu_problem") == "exit code 18: Failed to initialize NVML: Driver/library version mismatch"
    assert not told.has("gpu")


@pytest.mark.parametrize("sh", SHELLS)
def test_driver_that_gave_no_answer_is_not_asked_again(ask, sh, tmp_path):
    told = ask(f"echo asked >>{tmp_path}/calls; kill -KILL $$", sh)
    assert told.one("gpu_problem").startswith("exit code 137:")
    assert (tmp_path / "calls").read_text() == "asked\n"
    assert "hangs" in findings(told)["GPUs"].cure


@pytest.mark.parametrize("sh", SHELLS)
def test_process_and_lease_of_a_living_run_are_seen_on_the_host(ask, sh):
    marker = "00112233445566778899aabbccddeeff"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    owner = f"folder=/w/my runs/v5\nnonce={marker}\nlauncher=4194000:1\nboot={boot}\n"
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={**os.environ, "DFLASHCTL_MARKER": marker}
    )
    try:
        told = ask(ONE_GPU.replace("PID", str(child.pid)), sh, leases=[("gpu-GPU-a", owner)])
    finally:
        child.communicate(b"\n")
    (gpu,) = read_held_gpus(told)
    assert (gpu.leased_by, gpu.is_lease_live) == ("v5", True)
    (holder,) = gpu.holders
    assert (holder.pid, holder.run, holder.computes) == (child.pid, "v5", True)
    assert findings(told)["GPU 0"].level == "ok"


@pytest.mark.parametrize("sh", SHELLS)
def test_lease_of_an_earlier_boot_has_no_life_in_it(ask, sh):
    owner = "folder=/w/runs/v4\nnonce=aa\nlauncher=1:1\nboot=00000000-0000-0000-0000-000000000000\n"
    (gpu,) = read_held_gpus(ask(ONE_GPU, sh, leases=[("gpu-GPU-a", owner)]))
    assert (gpu.leased_by, gpu.is_lease_live) == ("v4", False)
