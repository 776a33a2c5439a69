import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dflashctl_remote.drafter.checkpoint import read_config, save_drafter
from dflashctl_remote.drafter.model import Drafter
from dflashctl_remote.drafter.warm_start import refuse_other_drafter, warm_started
from dflashctl_remote.spec.drafter import DrafterConfig
from dflashctl_remote.spec.errors import ArtifactCorrupt, BadInput
from dflashctl_remote.spec.manifest import sha256_of

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path, mixed_config: DrafterConfig, make_drafter: Callable[[DrafterConfig], Drafter]) -> Path:
    """No manifest, as public ones have none."""
    save_drafter(make_drafter(mixed_config), tmp_path)
    return tmp_path


def test_weights_begin_as_those_of_the_folder(folder: Path, mixed_config: DrafterConfig) -> None:
    started = warm_started(mixed_config, folder, device=CPU, dtype=torch.float32)
    wanted = load_file(folder / "model.safetensors")
    found = dict(started.drafter.named_parameters())
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) and found[name].requires_grad for name in wanted)
    assert started.sha256 == sha256_of(folder / "model.safetensors")


def test_masters_keep_what_a_bf16_drafter_rounds_away(folder: Path, mixed_config: DrafterConfig) -> None:
    started = warm_started(mixed_config, folder, device=CPU, dtype=torch.bfloat16)
    wanted = load_file(folder / "model.safetensors")
    for name, parameter in started.drafter.named_parameters():
        master = started.masters[f"master/{name}"]
        assert (parameter.dtype, master.dtype) == (torch.bfloat16, torch.float32)
        assert torch.equal(master, wanted[name]) and torch.equal(parameter, master.bfloat16())


def test_a_public_layout_of_four_taps_without_our_extra_keys_is_read(
    folder: Path, make_config: Callable[..., DrafterConfig], make_drafter: Callable[[DrafterConfig], Drafter]
) -> None:
    """As public checkpoints have it: bf16, mask token and taps in dflash_config alone, no is_causal."""
    config = make_config(tap_layers=(1, 2, 3, 4), num_target_layers=7)
    save_drafter(make_drafter(config).bfloat16(), folder)
    raw = json.loads((folder / "config.json").read_text())
    for key in (
        "is_causal",
        "mask_token_id",
        "target_layer_ids",
        "rope_parameters",
        "initializer_range",
        "layer_types",
    ):
        del raw[key]
    (folder / "config.json").write_text(json.dumps(raw))
    started = warm_started(config, folder, device=CPU, dtype=torch.float32)
    assert started.drafter.config == config
    assert started.drafter.fc.weight.shape[1] == 4 * config.hidden_size


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tap_layers": (1, 2, 3)}, r"its number of taps is 2, the run's 3"),
        ({"tap_layers": (0, 3)}, r"its tap layers is \[1, 3\], the run's \[0, 3\]"),
        ({"block_size": 8}, "its block size is 4, the run's 8"),
        ({"hidden_size": 64}, "its hidden size is 32, the run's 64"),
        ({"intermediate_size": 96}, "its intermediate size is 48, the run's 96"),
        ({"num_heads": 8}, "its num heads is 4, the run's 8"),
        ({"vocab_size": 99}, "its vocabulary is 61, the run's 99"),
        ({"mask_token_id": 5}, "its mask token id is 60, the run's 5"),
        ({"layer_types": ("full_attention", "full_attention")}, "its layer pattern is SF, the run's FF"),
        ({"sliding_window": 7}, "its sliding window is 6, the run's 7"),
        ({"is_causal": True}, "its causality inside a block"),
        ({"rope_theta": 1e6}, "its rope theta is 10000.0, the run's 1000000.0"),
    ],
)
def test_a_drafter_that_computes_something_else_is_refused_by_name(
    folder: Path, mixed_config: DrafterConfig, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        refuse_other_drafter(mixed_config.model_copy(update=change), read_config(folder), folder)
    assert caught.value.hint


def test_causality_written_out_is_the_causality_meant(mixed_config: DrafterConfig) -> None:
    """Full layers are bidirectional whether the key says so or is missing."""
    full = mixed_config.model_copy(update={"layer_types": ("full_attention",) * 2, "sliding_window": None})
    refuse_other_drafter(full, full.model_copy(update={"is_causal": False}), Path("there"))


def test_weights_of_another_shape_than_the_config_says_are_refused(folder: Path, mixed_config: DrafterConfig) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["norm.weight"] = tensors["norm.weight"][:-1].contiguous()
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ArtifactCorrupt, match=r"norm\.weight has shape"):
        warm_started(mixed_config, folder, device=CPU, dtype=torch.float32)


def test_a_path_that_depends_on_where_a_job_starts_is_refused(mixed_config: DrafterConfig) -> None:
    with pytest.raises(BadInput, match="must be an absolute path"):
        warm_started(mixed_config, Path("there"), device=CPU, dtype=torch.float32)
