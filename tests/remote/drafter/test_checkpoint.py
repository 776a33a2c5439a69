import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dflashctl_remote.drafter.checkpoint import load_drafter, read_config, save_drafter
from dflashctl_remote.spec.errors import ArtifactCorrupt, ArtifactIncomplete

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path, mixed_config: Any, make_drafter: Any) -> Path:
    save_drafter(make_drafter(mixed_config), tmp_path / "drafter")
    return tmp_path / "drafter"


def test_a_saved_drafter_loads_to_the_bit(folder: Path, mixed_config: Any, make_drafter: Any) -> None:
    loaded = load_drafter(folder, device=CPU, dtype=torch.float32)
    assert loaded.config == mixed_config
    for (name, wanted), got in zip(
        make_drafter(mixed_config).state_dict().items(), loaded.state_dict().values(), strict=True
    ):
        assert torch.equal(wanted, got), name


def test_the_z_lab_tensor_names_are_eleven_a_layer_and_three(folder: Path) -> None:
    names = set(load_file(folder / "model.safetensors"))
    assert len(names) == 2 * 11 + 3
    assert {"fc.weight", "hidden_norm.weight", "norm.weight", "layers.1.self_attn.q_norm.weight"} <= names


def test_block_size_stands_in_both_places_and_a_mix_of_causality_leaves_the_key_out(folder: Path) -> None:
    raw = json.loads((folder / "config.json").read_text())
    assert raw["block_size"] == raw["dflash_config"]["block_size"] == 4
    assert "is_causal" not in raw


def test_uniform_causality_is_written(tmp_path: Path, make_config: Any, make_drafter: Any) -> None:
    save_drafter(make_drafter(make_config()), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["is_causal"] is False


def test_two_block_sizes_are_refused(folder: Path) -> None:
    raw = json.loads((folder / "config.json").read_text())
    raw["block_size"] = 8
    (folder / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ArtifactCorrupt, match="two block sizes"):
        read_config(folder)


def test_a_tensor_of_another_shape_is_refused(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["norm.weight"] = tensors["norm.weight"][:-1].contiguous()
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ArtifactCorrupt, match=r"norm\.weight has shape"):
        load_drafter(folder, device=CPU, dtype=torch.float32)


def test_a_missing_tensor_is_refused(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["norm.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ArtifactCorrupt, match=r"missing tensors \['norm\.weight'\]"):
        load_drafter(folder, device=CPU, dtype=torch.float32)


def test_a_cut_weights_file_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ArtifactCorrupt, match="cannot be read"):
        load_drafter(folder, device=CPU, dtype=torch.float32)


def test_a_folder_without_weights_is_incomplete(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ArtifactIncomplete):
        load_drafter(folder, device=CPU, dtype=torch.float32)
