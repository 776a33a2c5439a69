"""The drafter on disk in the z-lab layout: config.json and model.safetensors, re-read and compared after writing."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from dflashctl_remote.drafter.model import Drafter
from dflashctl_remote.spec.drafter import DrafterConfig
from dflashctl_remote.spec.errors import ArtifactCorrupt, ArtifactIncomplete
from dflashctl_remote.spec.manifest import write_json


def save_drafter(drafter: Drafter, folder: Path) -> None:
    """Write both files, read them back, compare every field and every bit.

    Raises ArtifactCorrupt if what was read differs, OSError (disk full) as the system gives it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    dtype = str(drafter.fc.weight.dtype).removeprefix("torch.")
    write_json(folder / "config.json", drafter.config.to_zlab(dtype))
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in drafter.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if read_config(folder).to_zlab(dtype) != drafter.config.to_zlab(dtype):
        raise ArtifactCorrupt(f"{folder}/config.json reads back as another drafter than was written")
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        if set(file.keys()) != set(tensors):
            raise ArtifactCorrupt(f"{folder}/model.safetensors reads back with other tensors than were written")
        for name, tensor in tensors.items():
            if not _is_same_bits(file.get_tensor(name), tensor):
                raise ArtifactCorrupt(f"{folder}/model.safetensors: {name} reads back different")


def load_drafter(folder: Path, *, device: torch.device, dtype: torch.dtype) -> Drafter:
    """Build the drafter of a checkpoint folder; every tensor must be there with its shape, and no other.

    Raises ArtifactIncomplete, ArtifactCorrupt. The manifest is the caller's to check.
    """
    config = read_config(folder)
    path = folder / "model.safetensors"
    if not path.is_file():
        raise ArtifactIncomplete(f"{folder} has no model.safetensors")
    with torch.device("meta"):
        drafter = Drafter(config)
    wanted = {name: tuple(tensor.shape) for name, tensor in drafter.state_dict().items()}
    try:
        with safe_open(path, framework="pt") as file:
            found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            _compare_names(path, wanted, found)
            tensors = {name: file.get_tensor(name).to(device=device, dtype=dtype) for name in wanted}
    except SafetensorError as error:
        raise ArtifactCorrupt(f"{path} cannot be read: {error}") from error
    drafter.load_state_dict(tensors, assign=True)
    return drafter.requires_grad_(True)


def read_config(folder: Path) -> DrafterConfig:
    """config.json of a checkpoint folder; raises ArtifactIncomplete, ArtifactCorrupt."""
    path = folder / "config.json"
    if not path.is_file():
        raise ArtifactIncomplete(f"{folder} has no config.json")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ArtifactCorrupt(f"{path} is not JSON: {error}") from error
    return DrafterConfig.from_zlab(raw)


def _compare_names(path: Path, wanted: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]]) -> None:
    missing, extra = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    if missing or extra:
        raise ArtifactCorrupt(f"{path}: missing tensors {missing[:3]}, unknown tensors {extra[:3]}")
    for name, shape in wanted.items():
        if found[name] != shape:
            raise ArtifactCorrupt(f"{path}: {name} has shape {found[name]}, config.json asks for {shape}")


def _is_same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))
