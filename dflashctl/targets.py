"""What the operator's side reads of a target: sizes out of config.json, and never a weight."""

import json
from dataclasses import dataclass
from pathlib import Path

from dflashctl.errors import ConfigError


@dataclass(frozen=True)
class TargetSize:
    """From the target's config.json."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int


def read_target_size(target: str) -> TargetSize:
    """From config.json of a Hugging Face folder, whose text part may be nested. Raises ConfigError."""
    path = Path(target) / "config.json"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise no_target(target, error.strerror or str(error)) from error
    return target_size_of(text, path)


def no_target(target: str, reason: str) -> ConfigError:
    return ConfigError(
        f"{target} is not a Hugging Face model folder: its config.json cannot be read ({reason})",
        hint="give the folder that holds config.json and the weights",
    )


def target_size_of(content: str, path: Path) -> TargetSize:
    """The same from the text of config.json, wherever it lies. Raises ConfigError."""
    try:
        raw = json.loads(content)
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    text = raw.get("text_config", raw) if isinstance(raw, dict) else raw

    def size(name: str) -> int:
        value = text.get(name) if isinstance(text, dict) else None
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"{path} has no {name}, a positive number: not a causal language model's config")
        return value

    return TargetSize(
        num_layers=size("num_hidden_layers"),
        hidden_size=size("hidden_size"),
        intermediate_size=size("intermediate_size"),
        vocab_size=size("vocab_size"),
    )
