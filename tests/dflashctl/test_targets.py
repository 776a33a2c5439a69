import json

import pytest

from dflashctl.errors import ConfigError
from dflashctl.targets import TargetSize, read_target_size


def test_target_size_is_found_in_nested_and_flat_configs(tmp_path):
    flat = {"num_hidden_layers": 4, "hidden_size": 8, "intermediate_size": 16, "vocab_size": 32}
    for name, raw in (("flat", flat), ("nested", {"text_config": flat})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(raw))
        assert read_target_size(str(tmp_path / name)) == TargetSize(4, 8, 16, 32)


def test_folder_that_is_no_model_is_named(tmp_path):
    with pytest.raises(ConfigError, match="not a Hugging Face model folder"):
        read_target_size(str(tmp_path))


@pytest.mark.parametrize("config", [[], {"text_config": 5}, {"text_config": None}, {"num_hidden_layers": "x"}])
def test_config_of_another_shape_is_no_causal_language_model(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="not a causal language model's config"):
        read_target_size(str(tmp_path))
