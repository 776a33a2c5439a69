"""What the demo must know of a target that somebody names: its depth, and a token for the drafter's empty slots.

Read from the folder's JSON files alone, since nothing here may load a model.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflashctl.errors import ConfigError

_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token")


@dataclass(frozen=True)
class TargetFacts:
    num_layers: int
    mask_token_id: int | None
    """None: the tokenizer names a mask token itself, and nothing need be chosen."""
    why_mask: str = ""
    """How it was chosen, for the reader of run.yaml."""


def read_target(folder: Path) -> TargetFacts:
    """Raises ConfigError if the folder is no Hugging Face causal LM, or has no token to spare."""
    raw = _read(folder / "config.json")
    nested = raw.get("text_config")
    config = nested if isinstance(nested, dict) else raw
    if not isinstance(config.get("num_hidden_layers"), int):
        raise ConfigError(
            f"--target {folder} is not the folder of a Hugging Face causal LM: "
            "its config.json cannot be read or has no num_hidden_layers"
        )
    mask, why = _mask_token(folder, config.get("vocab_size") or 0)
    return TargetFacts(config["num_hidden_layers"], mask, why)


def _mask_token(folder: Path, vocab_size: int) -> tuple[int | None, str]:
    """The first embedding row that no text reaches, else a special token that neither role nor template uses."""
    settings = _read(folder / "tokenizer_config.json") | _read(folder / "special_tokens_map.json")
    if settings.get("mask_token"):
        return None, ""
    tokenizer = _read(folder / "tokenizer.json")
    added = [token for token in tokenizer.get("added_tokens", []) if isinstance(token, dict)]
    vocab = tokenizer.get("model", {}).get("vocab", {})
    used = set(vocab.values() if isinstance(vocab, dict) else range(len(vocab))) | {token["id"] for token in added}
    if used and max(used) + 1 < vocab_size:
        return max(used) + 1, "the first row of the embedding that no token uses"
    taken = {_text(settings.get(role)) for role in _ROLES} | _end_tokens(folder, added)
    template = _template(folder, settings)
    for token in added:
        text = token["content"]
        if token.get("special") and text not in taken and text not in template:
            return token["id"], f"{text}: special, and used by neither role nor chat template"
    raise ConfigError(
        f"the tokenizer of --target {folder} has no mask token and none to spare",
        hint="name one: --set train.drafter.mask_token_id=ID, an id that is neither pad nor eos",
    )


def _end_tokens(folder: Path, added: list[dict[str, Any]]) -> set[str]:
    """Texts of the ids that config.json and generation_config.json give a role."""
    ids: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        raw = _read(folder / name)
        for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
            value = raw.get(key)
            ids |= set(value if isinstance(value, list) else [] if value is None else [value])
    return {token["content"] for token in added if token["id"] in ids}


def _template(folder: Path, settings: dict[str, Any]) -> str:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    return json.dumps(settings.get("chat_template", ""))


def _text(token: Any) -> str:
    return token.get("content", "") if isinstance(token, dict) else token or ""


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is none to read."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
