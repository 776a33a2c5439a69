from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dflashctl_remote.drafter.checkpoint import load_confidence, load_drafter, save_drafter
from dflashctl_remote.drafter.model import Drafter
from dflashctl_remote.losses.confidence.head import add_confidence, confidence_of
from dflashctl_remote.spec.drafter import DrafterConfig
from dflashctl_remote.spec.errors import ArtifactCorrupt

CPU = torch.device("cpu")


def make_drafter() -> Drafter:
    drafter = Drafter(
        DrafterConfig(
            hidden_size=16,
            num_layers=1,
            num_heads=2,
            num_kv_heads=1,
            head_dim=8,
            intermediate_size=24,
            vocab_size=61,
            rms_norm_eps=1e-6,
            rope_theta=1e4,
            max_position_embeddings=512,
            layer_types=("full_attention",),
            sliding_window=None,
            is_causal=None,
            block_size=4,
            mask_token_id=60,
            tap_layers=(1, 3),
            num_target_layers=6,
        )
    )
    drafter.init_weights(seed=3)
    return drafter


@pytest.fixture
def drafter() -> Drafter:
    made = make_drafter()
    head = add_confidence(made, made.config.hidden_size)
    torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(1))
    return made


def test_the_head_is_among_what_the_optimizer_trains(drafter: Drafter) -> None:
    assert {"confidence.weight", "confidence.bias"} < {name for name, _ in drafter.named_parameters()}
    assert confidence_of(make_drafter()) is None


def test_engines_find_the_files_that_they_would_find_without_a_head(drafter: Drafter, tmp_path: Path) -> None:
    """They read config.json and every *.safetensors beside it."""
    save_drafter(make_drafter(), tmp_path / "without")
    save_drafter(drafter, tmp_path / "with")
    names = [sorted(p.name for p in (tmp_path / which).glob("*.*")) for which in ("without", "with")]
    assert names[0] == names[1] == ["config.json", "model.safetensors"]
    for name in names[0]:
        assert (tmp_path / "with" / name).read_bytes() == (tmp_path / "without" / name).read_bytes()


def test_a_saved_head_loads_to_the_bit(drafter: Drafter, tmp_path: Path) -> None:
    save_drafter(drafter, tmp_path)
    loaded = load_drafter(tmp_path, device=CPU, dtype=torch.float32)
    assert confidence_of(loaded) is None
    load_confidence(loaded, tmp_path)
    wanted = confidence_of(drafter)
    found = confidence_of(loaded)
    assert wanted is not None and found is not None
    assert torch.equal(found.weight, wanted.weight) and torch.equal(found.bias, wanted.bias)


def test_a_folder_without_a_head_gives_none(tmp_path: Path) -> None:
    save_drafter(make_drafter(), tmp_path)
    loaded = load_drafter(tmp_path, device=CPU, dtype=torch.float32)
    load_confidence(loaded, tmp_path)
    assert confidence_of(loaded) is None


def test_a_head_of_another_width_is_refused(drafter: Drafter, tmp_path: Path) -> None:
    save_drafter(drafter, tmp_path)
    path = tmp_path / "confidence/head.safetensors"
    save_file(load_file(path) | {"weight": torch.zeros(1, 15)}, path)
    with pytest.raises(ArtifactCorrupt, match="weight has shape"):
        load_confidence(load_drafter(tmp_path, device=CPU, dtype=torch.float32), tmp_path)
