"""What is refused before any weights are read."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dflashctl_remote.serve.loading import ServedModel, load_model
from dflashctl_remote.spec.errors import ArtifactCorrupt, ArtifactIncomplete, BadInput
from dflashctl_remote.spec.events import Event, Notice
from dflashctl_remote.spec.manifest import write_manifest
from dflashctl_remote.spec.serve import ServeSpec

MakeModel = Callable[..., ServedModel]


@pytest.fixture
def copied(checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint, tmp_path / "drafter"))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("hidden_size", 512, "its hidden size is 512, the target's 256"),
        ("vocab_size", 100, "its vocabulary is 100, the target's 4096"),
        ("num_target_layers", 9, "its number of target layers is 9, the target's 4"),
        ("target_layer_ids", [1, 4], r"taps layers \[1, 4\], and the target has 0 to 3"),
    ],
)
def test_a_drafter_for_another_target_is_refused(
    make_model: MakeModel, copied: Path, field: str, value: object, words: str
) -> None:
    config = json.loads((copied / "config.json").read_text())
    place = config["dflash_config"] if field in config["dflash_config"] else config
    place[field] = value
    (copied / "config.json").write_text(json.dumps(config))
    write_manifest(copied, "checkpoint", bundle_sha="none", about={})
    with pytest.raises(BadInput, match=words):
        make_model(drafter=str(copied))


def test_a_checkpoint_without_manifest_is_refused(make_model: MakeModel, copied: Path) -> None:
    (copied / "manifest.json").unlink()
    with pytest.raises(ArtifactIncomplete, match="no manifest"):
        make_model(drafter=str(copied))


def test_a_checkpoint_with_a_changed_byte_is_refused(make_model: MakeModel, copied: Path) -> None:
    weights = bytearray((copied / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copied / "model.safetensors").write_bytes(weights)
    with pytest.raises(ArtifactCorrupt, match=r"model\.safetensors differs"):
        make_model(drafter=str(copied))


def test_more_drafts_than_the_block_holds_are_refused(make_model: MakeModel) -> None:
    with pytest.raises(BadInput, match="num_draft_tokens is 4, and the drafter was trained on blocks of 4"):
        make_model(num_draft_tokens=4)


def test_more_context_than_the_target_takes_is_refused(make_model: MakeModel) -> None:
    with pytest.raises(BadInput, match="max_length_tokens is 4096, and the target takes 2048"):
        make_model(max_length_tokens=4096)


def test_a_whole_block_is_drafted_unless_less_is_asked(make_model: MakeModel) -> None:
    assert make_model().num_draft_tokens == 3
    assert make_model(num_draft_tokens=2).num_draft_tokens == 2


def test_drafts_without_a_drafter_are_said_to_mean_nothing(model: ServedModel) -> None:
    events: list[Event] = []
    spec = ServeSpec(target=model.about["target"], served_name="m", port=0, num_draft_tokens=3, device="cpu")
    assert load_model(spec, events.append).num_draft_tokens == 0
    assert [event.message for event in events if isinstance(event, Notice)] == [
        "no drafter, so num_draft_tokens 3 means nothing"
    ]
