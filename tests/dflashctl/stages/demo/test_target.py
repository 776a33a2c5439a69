import json
from pathlib import Path
from typing import Any

import pytest

from dflashctl.errors import ConfigError
from dflashctl.stages.demo.target import read_target


def folder(tmp_path: Path, *, vocab_size: int = 6, **files: Any) -> Path:
    contents = {
        "config.json": {"num_hidden_layers": 9, "vocab_size": vocab_size, "eos_token_id": 5},
        "tokenizer_config.json": {
            "bos_token": "<s>",
            "pad_token": {"content": "<pad>"},
            "chat_template": "<turn>{{x}}",
        },
        "tokenizer.json": {
            "model": {"vocab": {"a": 0}},
            "added_tokens": [
                {"id": 1, "content": "<s>", "special": True},
                {"id": 2, "content": "<turn>", "special": True},
                {"id": 3, "content": "plain", "special": False},
                {"id": 4, "content": "<spare>", "special": True},
                {"id": 5, "content": "<end>", "special": True},
            ],
        },
        **files,
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(json.dumps(content))
    return tmp_path


def test_a_tokenizer_with_mask_token_needs_no_choice(tmp_path: Path) -> None:
    facts = read_target(folder(tmp_path, **{"tokenizer_config.json": {"mask_token": "<m>"}}))
    assert (facts.num_layers, facts.mask_token_id) == (9, None)


def test_an_embedding_row_that_no_token_uses_comes_first(tmp_path: Path) -> None:
    assert read_target(folder(tmp_path, vocab_size=8)).mask_token_id == 6


def test_else_a_special_token_without_role_or_place_in_the_template(tmp_path: Path) -> None:
    facts = read_target(folder(tmp_path))
    assert facts.mask_token_id == 4
    assert "<spare>" in facts.why_mask


def test_none_to_spare_is_said_with_the_cure(tmp_path: Path) -> None:
    tokenizer = {"model": {"vocab": {"a": 0}}, "added_tokens": []}
    with pytest.raises(ConfigError, match="none to spare"):
        read_target(folder(tmp_path, vocab_size=1, **{"tokenizer.json": tokenizer}))


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not the folder of a Hugging Face causal LM"):
        read_target(tmp_path)


@pytest.mark.parametrize("config", [{"text_config": 5}, {"text_config": None}, {"num_hidden_layers": "many"}, []])
def test_a_config_that_makes_no_sense_is_refused(tmp_path: Path, config: Any) -> None:
    with pytest.raises(ConfigError, match="not the folder of a Hugging Face causal LM"):
        read_target(folder(tmp_path, **{"config.json": config}))
