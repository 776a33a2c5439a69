import sys
from pathlib import Path

import pytest

from dflashctl.config.servers import ServerSpec
from dflashctl.errors import ArtifactError, ConfigError
from dflashctl.stages.deploy.plan import plan_deploy, spec_of, without_drafter
from dflashctl_remote.spec.manifest import write_manifest
from dflashctl_remote.spec.process import MARKER


@pytest.fixture
def planned(target, workdir):
    def make(**fields):
        spec = ServerSpec(**{"name": "a", "target": str(target), **fields})
        return plan_deploy(spec, workdir, python=sys.executable, bundle_root=Path("/bundle"))

    return make


def test_drafts_a_step_are_the_block_without_its_anchor(planned, checkpoint):
    assert planned(drafter=str(checkpoint())).num_draft_tokens == 7
    assert planned(drafter=str(checkpoint()), num_draft_tokens=5).num_draft_tokens == 5


def test_the_process_carries_its_folder_as_marker(planned, checkpoint, workdir):
    env = dict(planned(drafter=str(checkpoint())).launch.env)
    assert env[MARKER] == str(workdir.server("a").folder)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": 32}, "hidden size is 32, the target's 64"),
        ({"vocab_size": 99}, "vocabulary is 99, the target's 100"),
        ({"num_target_layers": 8}, "number of target layers is 8, the target's 4"),
        ({"mask_token_id": 100}, "mask token is 100, outside the target's vocabulary of 100"),
        ({"target_layer_ids": [0, 4]}, r"taps layers \[0, 4\], and the target has 0 to 3"),
        ({"target_layer_ids": [-1, 2]}, r"taps layers \[-1, 2\], and the target has 0 to 3"),
        ({"target_layer_ids": []}, r"taps layers \[\], and the target has 0 to 3"),
    ],
)
def test_a_drafter_for_another_target_is_refused_before_launch(planned, checkpoint, changes, said):
    with pytest.raises(ConfigError, match=said):
        planned(drafter=str(checkpoint(**changes)))


def test_more_drafts_than_the_block_has_room_for_are_refused(planned, checkpoint):
    with pytest.raises(ConfigError, match="block of 8 has room for 7"):
        planned(drafter=str(checkpoint()), num_draft_tokens=8)


def test_a_checkpoint_without_manifest_is_not_served(planned, checkpoint):
    folder = checkpoint()
    (folder / "manifest.json").unlink()
    with pytest.raises(ArtifactError):
        planned(drafter=str(folder))


def test_a_checkpoint_cut_short_is_not_served(planned, checkpoint):
    folder = checkpoint()
    (folder / "model.safetensors").write_bytes(b"weig")
    with pytest.raises(ArtifactError, match="has 4 bytes, the manifest says 7"):
        planned(drafter=str(folder))


@pytest.mark.parametrize("config", ["[]", "{", '{"num_hidden_layers": "x"}', '{"dflash_config": 5}'])
def test_a_checkpoint_whose_config_is_no_drafters_is_named(planned, checkpoint, config):
    folder = checkpoint()
    (folder / "config.json").write_text(config)
    write_manifest(folder, "checkpoint", bundle_sha="0" * 12, about={})
    with pytest.raises(ArtifactError, match="config"):
        planned(drafter=str(folder))


def test_a_target_that_is_no_model_is_refused_without_a_drafter_too(planned, tmp_path):
    with pytest.raises(ConfigError, match="not a Hugging Face model folder"):
        planned(target=str(tmp_path))


def test_unknown_engine_and_option_are_refused(planned):
    with pytest.raises(ConfigError, match="engine sglamg is not known"):
        planned(engine="sglamg")
    with pytest.raises(ConfigError, match="no option tp_size"):
        planned(options={"tp_size": 2})


def test_the_baseline_is_the_same_server_without_its_drafter(target):
    spec = ServerSpec(name="a", target=str(target), drafter="r@1", num_draft_tokens=3, port=8100, max_running=2)
    plain = without_drafter(spec, "a-plain")
    assert (plain.name, plain.drafter, plain.num_draft_tokens, plain.port) == ("a-plain", None, None, 0)
    assert (plain.target, plain.max_running) == (spec.target, 2)


def test_a_server_can_be_asked_for_again_from_what_its_folder_holds(planned, checkpoint, workdir):
    plan = planned(drafter=str(checkpoint()), max_running=2)
    for path, text in plan.launch.files:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert spec_of(workdir.server("a")) == plan.spec
    with pytest.raises(ArtifactError, match="does not say how server b"):
        spec_of(workdir.server("b"))
