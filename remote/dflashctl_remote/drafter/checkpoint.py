"""The drafter on disk in the z-lab layout: config.json and model.safetensors, re-read and compared after writing.

A confidence head has no place in that layout; it lies a folder below, where no engine looks.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dflashctl_remote.drafter.model import Drafter
from dflashctl_remote.losses.confidence.head import NAME, add_confidence
from dflashctl_remote.spec.drafter import DrafterConfig
from dflashctl_remote.spec.errors import ArtifactCorrupt, ArtifactIncomplete
from dflashctl_remote.spec.manifest import write_json

CONFIDENCE = "confidence/head.safetensors"


@dataclass(frozen=True)
class Weights:
    """A drafter's tensors by name, apart from the module that may train on; those of a confidence head among them."""

    config: DrafterConfig
    tensors: dict[str, Tensor]


def weights_of(drafter: Drafter) -> Weights:
    """The module's own tensors, not copies."""
    return Weights(drafter.config, {name: tensor.detach() for name, tensor in drafter.state_dict().items()})


def save_drafter(drafter: Drafter, folder: Path) -> None:
    """`save_weights` of a drafter as it is now."""
    save_weights(weights_of(drafter), folder)


def save_weights(weights: Weights, folder: Path) -> None:
    """Write the files, read them back, compare every field and every bit.

    Raises ArtifactCorrupt if what was read differs, OSError (disk full) as the system gives it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    dtype = str(weights.tensors["fc.weight"].dtype).removeprefix("torch.")
    write_json(folder / "config.json", weights.config.to_zlab(dtype))
    of_head = f"{NAME}."
    head = {name.removeprefix(of_head): t for name, t in weights.tensors.items() if name.startswith(of_head)}
    if head:
        (folder / CONFIDENCE).parent.mkdir(exist_ok=True)
        _save_tensors(head, folder / CONFIDENCE)
    tensors = {name: tensor for name, tensor in weights.tensors.items() if not name.startswith(of_head)}
    _save_tensors(tensors, folder / "model.safetensors")
    if read_config(folder).to_zlab(dtype) != weights.config.to_zlab(dtype):
        raise ArtifactCorrupt(f"{folder}/config.json reads back as another drafter than was written")


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
    _compare_taps(path, config)
    drafter.load_state_dict(_load_tensors(path, drafter.state_dict(), device=device, dtype=dtype), assign=True)
    return drafter.requires_grad_(True)


def load_confidence(drafter: Drafter, folder: Path) -> None:
    """Give the drafter the head that was saved beside it, if there is one. Raises ArtifactCorrupt."""
    path = folder / CONFIDENCE
    if path.is_file():
        head = add_confidence(drafter, drafter.config.hidden_size)
        head.load_state_dict(_load_tensors(path, head.state_dict(), device=head.weight.device, dtype=head.weight.dtype))


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


def _save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    written = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(written, path, metadata={"format": "pt"})
    with safe_open(path, framework="pt") as file:
        if set(file.keys()) != set(written):
            raise ArtifactCorrupt(f"{path} reads back with other tensors than were written")
        for name, tensor in written.items():
            if not _is_same_bits(file.get_tensor(name), tensor):
                raise ArtifactCorrupt(f"{path}: {name} reads back different")


def _load_tensors(
    path: Path, like: dict[str, Tensor], *, device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
    wanted = {name: tuple(tensor.shape) for name, tensor in like.items()}
    try:
        with safe_open(path, framework="pt") as file:
            found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            _compare_names(path, wanted, found)
            return {name: file.get_tensor(name).to(device=device, dtype=dtype) for name in wanted}
    except SafetensorError as error:
        raise ArtifactCorrupt(f"{path} cannot be read: {error}") from error


def _compare_taps(path: Path, config: DrafterConfig) -> None:
    """The tap list against what fc reads, before any other shape: of all mismatches the one that is met in practice."""
    try:
        with safe_open(path, framework="pt") as file:
            shape = file.get_slice("fc.weight").get_shape() if "fc.weight" in file.keys() else None  # noqa: SIM118
    except SafetensorError as error:
        raise ArtifactCorrupt(f"{path} cannot be read: {error}") from error
    num_taps, width = len(config.tap_layers), config.hidden_size
    if shape is None or len(shape) != 2 or shape[1] == num_taps * width:
        return
    listed = (
        f"{path.parent}/config.json lists {num_taps} taps ({', '.join(map(str, config.tap_layers))}), and fc.weight"
    )
    if shape[1] % width:
        raise ArtifactCorrupt(f"{listed} has {shape[1]} columns, no multiple of the width {width}")
    raise ArtifactCorrupt(
        f"{listed} reads {shape[1] // width}: {shape[1]} columns of a width of {width} each",
        hint="put the layers that it was trained on into dflash_config.target_layer_ids",
    )


def _compare_names(path: Path, wanted: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]]) -> None:
    missing, extra = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    if missing or extra:
        raise ArtifactCorrupt(f"{path}: missing tensors {missing[:3]}, unknown tensors {extra[:3]}")
    for name, shape in wanted.items():
        if found[name] != shape:
            raise ArtifactCorrupt(f"{path}: {name} has shape {found[name]}, config.json asks for {shape}")


def _is_same_bits(one: Tensor, other: Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))
