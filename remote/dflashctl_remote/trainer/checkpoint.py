"""Checkpoints of a run: written aside, synced, compared, published by rename, so that presence means complete.

A folder `step-00001234` holds the drafter in the z-lab layout, `state/` with what a resume needs beside it, and
a manifest that is written last.
"""

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dflashctl_remote.drafter.checkpoint import Weights, load_confidence, load_drafter, save_weights
from dflashctl_remote.drafter.model import Drafter
from dflashctl_remote.spec.base import Spec
from dflashctl_remote.spec.errors import (
    ArtifactCorrupt,
    ArtifactIncomplete,
    BadInput,
    BundleError,
    TrainingFailed,
    is_disk_full,
)
from dflashctl_remote.spec.manifest import MANIFEST_NAME, verify, write_json, write_manifest
from dflashctl_remote.spec.train import TrainSpec
from dflashctl_remote.spec.validation import KeepPolicy
from dflashctl_remote.trainer.keep import kept_of, to_delete

OPTIMIZER = "state/optimizer.safetensors"
TRAINER = "state/trainer.json"

MAY_CHANGE = (
    "target",
    "dataset",
    "checkpoint.every_steps",
    "checkpoint.keep",
    "checkpoint.keep_best",
    "checkpoint.every_hours",
    "sinks.tensorboard",
    "sinks.wandb",
    "sinks.wandb_project",
    "validation.every_steps",
    "validation.max_time_share",
    "validation.num_rows",
    "device",
    "dtype",
    "attention",
    "num_threads",
    "placement.layout",
    "placement.ranks",
    "placement.nodes",
    "placement.rows_ahead",
    "placement.states_ahead",
    "objective.loss_chunk_rows",
    "objective.anchors_per_group",
    "warm_start",
)
"""Settings that a resume may change: places and pace. `dtype` is compared as resolved; of the target and of
the dataset, what counts is their content; a warm start is over."""


class TrainerState(Spec):
    """state/trainer.json: where the run stands. Anchors and noise follow from (seed, batch): no generator is here."""

    schema_version: Literal[1] = 1
    step: int
    batch: int
    """The data cursor: batches consumed by the `step` complete optimizer steps."""
    epoch: float
    loss: float | None
    """Of the last step; None at step 0."""
    dtype: str
    target_sha256: str
    dataset_sha256: str
    warm_start_sha256: str | None = None
    """Of the weights that the run began with; None: new ones."""
    train: TrainSpec
    """The settings, schedule included, that led here."""


@dataclass(frozen=True)
class Loaded:
    drafter: Drafter
    optimizer: dict[str, Tensor]
    state: TrainerState


@dataclass(frozen=True)
class Newest:
    """What a resume starts from, and the newer folders that it had to pass over."""

    folder: Path | None
    rejected: tuple[str, ...]


def save_checkpoint(
    checkpoints: Path,
    weights: Weights,
    optimizer: dict[str, Tensor],
    state: TrainerState,
    *,
    bundle_sha: str,
    about: dict[str, Any],
) -> Path:
    """Write and publish `checkpoints/step-XXXXXXXX`; whatever goes wrong, what was published before stays.

    Raises TrainingFailed naming the last good checkpoint if the disk is full, ArtifactCorrupt if the files read
    back different.
    """
    final = checkpoints / f"step-{state.step:08d}"
    aside = checkpoints / f".{final.name}.part"
    try:
        shutil.rmtree(aside, ignore_errors=True)
        save_weights(weights, aside)
        (aside / OPTIMIZER).parent.mkdir()
        save_file({key: value.detach().cpu() for key, value in optimizer.items()}, aside / OPTIMIZER)
        write_json(aside / TRAINER, state.model_dump(mode="json"))
        _sync_tree(aside)
        write_manifest(aside, "checkpoint", bundle_sha=bundle_sha, about=about)
        _sync(aside)
        _publish(aside, final)
    except (OSError, SafetensorError) as error:
        if not is_disk_full(error):
            raise
        raise TrainingFailed(
            f"the disk is full: checkpoint {final} could not be written; {last_good(checkpoints)}",
            hint="free space there, or lower checkpoint.keep, and start the run again: it resumes",
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return final


def load_checkpoint(folder: Path, *, device: torch.device, dtype: torch.dtype) -> Loaded:
    """Everything of a checkpoint whose files `newest_complete` has verified.

    Raises ArtifactCorrupt, ArtifactIncomplete.
    """
    state = read_state(folder)
    try:
        optimizer = load_file(folder / OPTIMIZER)
    except (FileNotFoundError, SafetensorError) as error:
        raise ArtifactCorrupt(f"{folder}/{OPTIMIZER} cannot be read, so it cannot be resumed: {error}") from error
    drafter = load_drafter(folder, device=device, dtype=dtype)
    load_confidence(drafter, folder)
    return Loaded(drafter, optimizer, state)


def read_state(folder: Path) -> TrainerState:
    """Where a checkpoint stands; raises ArtifactCorrupt."""
    try:
        return TrainerState.model_validate_json((folder / TRAINER).read_bytes())
    except (FileNotFoundError, ValidationError) as error:
        why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "there is no such file"
        raise ArtifactCorrupt(
            f"{folder}/{TRAINER} cannot be read, so it cannot be resumed: {why}",
            hint="it may still be evaluated and served; resume from another one",
        ) from error


def complete_steps(checkpoints: Path) -> dict[int, Path]:
    """Published checkpoints by step, rising; folders without manifest are not among them."""
    found = {}
    for folder in sorted(checkpoints.glob("step-*")):
        if re.fullmatch(r"step-\d{8}", folder.name) and (folder / MANIFEST_NAME).is_file():
            found[int(folder.name[5:])] = folder
    return found


def newest_complete(checkpoints: Path) -> Newest:
    """The newest checkpoint whose every file agrees with its manifest.

    Raises ArtifactCorrupt if there are checkpoints beyond step 0 and none of them can be used: starting over
    silently would throw the run away.
    """
    rejected: list[str] = []
    found = complete_steps(checkpoints)
    for step in sorted(found, reverse=True):
        if step == 0 and rejected:
            break
        try:
            verify(found[step], "checkpoint")
        except (ArtifactCorrupt, ArtifactIncomplete) as error:
            rejected.append(error.message)
            continue
        return Newest(found[step], tuple(rejected))
    if max(found, default=0) > 0:
        raise ArtifactCorrupt(
            f"no checkpoint in {checkpoints} can be resumed from: {rejected[0]}",
            hint="copy a good one back, or start a new run",
        )
    return Newest(None, tuple(rejected))


def last_good(checkpoints: Path) -> str:
    """Half a sentence for an error: which checkpoint is the last one that holds."""
    try:
        newest = newest_complete(checkpoints).folder
    except BundleError:
        newest = None
    return f"the last good checkpoint is {newest}" if newest else "there is no earlier checkpoint"


def refuse_other_settings(saved: TrainerState, now: TrainerState) -> None:
    """Raise BadInput naming the first setting in which a resume would differ from the run it continues."""
    before, after = _settings(saved), _settings(now)
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            raise BadInput(
                f"this run cannot be resumed with another {key}: "
                f"the checkpoint of step {saved.step} was made with {before.get(key)}, now it is {after.get(key)}",
                hint="restore it in run.json, or start a new run",
            )


def prune(checkpoints: Path, policy: KeepPolicy) -> None:
    """Delete the checkpoints that the policy does not keep."""
    found = complete_steps(checkpoints)
    for step in to_delete([kept_of(step, folder) for step, folder in found.items()], policy):
        # Hidden by rename first: a folder that is half deleted must not look complete.
        aside = checkpoints / f".{found[step].name}.deleted"
        found[step].rename(aside)
        shutil.rmtree(aside)


def remove_leftovers(checkpoints: Path) -> tuple[str, ...]:
    """Delete what a killed process left half written or half deleted; returns the names."""
    leftovers = sorted(path for path in checkpoints.glob(".step-*") if path.is_dir())
    for path in leftovers:
        shutil.rmtree(path)
    return tuple(path.name for path in leftovers)


def _settings(state: TrainerState) -> dict[str, Any]:
    """Dotted keys of everything that a resume must not change."""
    out: dict[str, Any] = {}

    def flatten(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                flatten(f"{prefix}.{key}" if prefix else key, inner)
        else:
            out[prefix] = value

    flatten("", state.train.model_dump(mode="json"))
    return {key: value for key, value in out.items() if key not in MAY_CHANGE} | {
        "dtype": state.dtype,
        "target content": state.target_sha256,
        "dataset content": state.dataset_sha256,
    }


def _publish(aside: Path, final: Path) -> None:
    if final.exists():
        # Only a resume from an older checkpoint meets one: this folder did not verify, or has no manifest.
        old = final.with_name(f".{final.name}.deleted")
        final.rename(old)
        aside.rename(final)
        shutil.rmtree(old)
    else:
        aside.rename(final)
    _sync(final.parent)


def _sync_tree(folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
