import os
import resource
import subprocess
from pathlib import Path

import pytest
import torch

from dflashctl_remote.drafter.checkpoint import weights_of
from dflashctl_remote.spec.errors import ArtifactCorrupt, BadInput, TrainingFailed
from dflashctl_remote.spec.manifest import verify
from dflashctl_remote.spec.train import BatchSpec, CheckpointSpec, ObjectiveSpec, TrainSpec
from dflashctl_remote.trainer.checkpoint import (
    complete_steps,
    load_checkpoint,
    newest_complete,
    prune,
    refuse_other_settings,
    remove_leftovers,
    save_checkpoint,
)

CPU = torch.device("cpu")


@pytest.fixture
def save(make_drafter, make_optimizer, make_state):
    """save(folder, step): a checkpoint of a tiny drafter."""
    drafter = make_drafter()
    optimizer = make_optimizer(drafter)

    def save_step(checkpoints: Path, step: int) -> Path:
        state = make_state(step=step, batch=2 * step)
        return save_checkpoint(
            checkpoints, weights_of(drafter), optimizer.state_dict(), state, bundle_sha="b", about={"step": step}
        )

    return save_step


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_checkpoint_reads_back_to_the_bit(tmp_path, make_drafter, make_optimizer, make_state, dtype):
    drafter = make_drafter(dtype)
    optimizer = make_optimizer(drafter).state_dict()
    folder = save_checkpoint(tmp_path, weights_of(drafter), optimizer, make_state(), bundle_sha="b", about={})
    loaded = load_checkpoint(folder, device=CPU, dtype=dtype)
    assert all(torch.equal(a, b) for a, b in zip(loaded.drafter.parameters(), drafter.parameters(), strict=True))
    assert loaded.optimizer.keys() == optimizer.keys()
    assert all(torch.equal(loaded.optimizer[key], optimizer[key]) for key in optimizer)
    assert loaded.state == make_state()


def test_manifest_covers_the_drafter_and_the_state(tmp_path, save):
    folder = save(tmp_path, 2)
    manifest = verify(folder, "checkpoint")
    assert [entry.path for entry in manifest.files] == [
        "config.json",
        "model.safetensors",
        "state/optimizer.safetensors",
        "state/trainer.json",
    ]
    assert manifest.about == {"step": 2}
    assert os.listdir(tmp_path) == ["step-00000002"]


def test_newest_is_the_highest_complete_step(tmp_path, save):
    save(tmp_path, 3)
    save(tmp_path, 12)
    assert newest_complete(tmp_path).folder == tmp_path / "step-00000012"


def test_folder_without_manifest_is_not_a_checkpoint(tmp_path, save):
    save(tmp_path, 3)
    (save(tmp_path, 6) / "manifest.json").unlink()
    assert newest_complete(tmp_path).folder == tmp_path / "step-00000003"


def test_one_changed_byte_falls_back_to_an_older_checkpoint_and_says_so(tmp_path, save):
    save(tmp_path, 3)
    flip_a_byte(save(tmp_path, 6) / "model.safetensors")
    newest = newest_complete(tmp_path)
    assert newest.folder == tmp_path / "step-00000003"
    assert newest.rejected == (f"{tmp_path}/step-00000006: model.safetensors differs from its sha256 in the manifest",)


def test_a_run_whose_checkpoints_are_all_corrupt_is_not_started_over(tmp_path, save):
    save(tmp_path, 0)
    flip_a_byte(save(tmp_path, 6) / "model.safetensors")
    with pytest.raises(ArtifactCorrupt, match=r"no checkpoint in .* can be resumed from"):
        newest_complete(tmp_path)


def test_a_corrupt_step_0_alone_is_passed_over(tmp_path, save):
    flip_a_byte(save(tmp_path, 0) / "model.safetensors")
    newest = newest_complete(tmp_path)
    assert newest.folder is None
    assert len(newest.rejected) == 1


def test_saving_again_replaces_a_corrupt_folder(tmp_path, save):
    flip_a_byte(save(tmp_path, 6) / "model.safetensors")
    verify(save(tmp_path, 6), "checkpoint")
    assert os.listdir(tmp_path) == ["step-00000006"]


def test_prune_keeps_step_0_and_the_newest(tmp_path, save):
    for step in (0, 3, 6, 9):
        save(tmp_path, step)
    prune(tmp_path, CheckpointSpec(keep=2))
    assert list(complete_steps(tmp_path)) == [0, 6, 9]


def test_leftovers_of_a_killed_process_go(tmp_path, save):
    save(tmp_path, 3)
    (tmp_path / ".step-00000006.part" / "state").mkdir(parents=True)
    assert remove_leftovers(tmp_path) == (".step-00000006.part",)
    assert os.listdir(tmp_path) == ["step-00000003"]


def test_interrupt_while_saving_leaves_older_checkpoints_and_no_partial_one(
    tmp_path, save, make_drafter, make_optimizer, make_state
):
    save(tmp_path, 3)
    drafter = make_drafter()

    class Interrupting(dict):
        def items(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, weights_of(drafter), Interrupting(), make_state(step=6), bundle_sha="b", about={})
    assert os.listdir(tmp_path) == ["step-00000003"]


@pytest.mark.parametrize("file", ["model.safetensors", "state/optimizer.safetensors"])
def test_full_disk_keeps_older_checkpoints_and_names_the_last(tmp_path, save, file):
    limit = (save(tmp_path, 3) / file).stat().st_size - 1
    if file != "model.safetensors":
        assert limit > (tmp_path / "step-00000003/model.safetensors").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(TrainingFailed, match=r"disk is full.*last good checkpoint is .*step-00000003"):
            save(tmp_path, 6)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == ["step-00000003"]
    verify(tmp_path / "step-00000003", "checkpoint")


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount command here")
    if done.returncode != 0:
        pytest.skip(f"cannot mount a small disk here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_really_full_disk_keeps_older_checkpoints(small_disk, save):
    save(small_disk, 3)
    with pytest.raises(TrainingFailed, match="step-00000003"):
        for step in range(6, 30, 3):
            save(small_disk, step)
            prune(small_disk, CheckpointSpec(keep=9))
    for folder in complete_steps(small_disk).values():
        verify(folder, "checkpoint")
    assert not list(small_disk.glob(".step-*"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"objective": ObjectiveSpec(gamma=4.0)},
            "another objective.gamma: .* step 2 was made with None, now it is 4.0",
        ),
        ({"batch": BatchSpec(block_ratio=2.0)}, "another batch.block_ratio"),
        ({"num_steps": 20}, "another num_steps: .* with 10, now it is 20"),
        ({"seed": 1}, "another seed"),
    ],
)
def test_resume_with_other_settings_is_refused_by_name(make_state, change, message):
    now = make_state(train=TrainSpec(**{"target": "t", "dataset": "d", "num_steps": 10} | change))
    with pytest.raises(BadInput, match=message):
        refuse_other_settings(make_state(), now)


@pytest.mark.parametrize("change", [{"dtype": "bfloat16"}, {"target_sha256": "x"}, {"dataset_sha256": "x"}])
def test_resume_on_other_content_is_refused(make_state, change):
    with pytest.raises(BadInput, match="cannot be resumed with another"):
        refuse_other_settings(make_state(), make_state(**change))


def test_resume_may_move_folders_and_change_pace(make_state):
    train = TrainSpec(
        target="elsewhere", dataset="there", num_steps=10, num_threads=1, checkpoint=CheckpointSpec(every_steps=1)
    )
    refuse_other_settings(make_state(), make_state(train=train))
