"""The prompts of a benchmark, read from JSONL and known by their content."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflashctl.errors import ConfigError

_ROLES = ("system", "user", "assistant", "tool")
_HINT = 'a row is {"id", "messages": [{"role", "content"}]} or {"id", "prompt"}, "category" if there is one'


@dataclass(frozen=True)
class Prompt:
    id: str
    """Unique in the file; "line-N" where the file gives none."""
    messages: tuple[dict[str, Any], ...]
    category: str | None


@dataclass(frozen=True)
class PromptSet:
    path: Path
    sha256: str
    """Of the whole file."""
    prompts: tuple[Prompt, ...]
    """The first `num_prompts` of it."""


def read_prompts(path: Path, num_prompts: int | None = None) -> PromptSet:
    """Raises ConfigError with file and line."""
    try:
        content = path.read_bytes()
        text = content.decode("utf-8")
    except OSError as error:
        raise ConfigError(
            f"prompts: {path} cannot be read: {error.strerror}", hint="--prompts FILE, or bench.prompts"
        ) from error
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: expected UTF-8, found byte {content[error.start]:#04x}") from error
    prompts: dict[str, Prompt] = {}
    for number, line_text in enumerate(text.split("\n"), start=1):
        if not line_text.strip():
            continue
        if num_prompts is not None and len(prompts) == num_prompts:
            break
        prompt = _prompt(line_text, f"{path}:{number}", number)
        if prompt.id in prompts:
            raise ConfigError(f"{path}:{number}: the id {prompt.id!r} was there before", hint="make ids unique")
        prompts[prompt.id] = prompt
    if not prompts:
        raise ConfigError(f"{path} holds no prompt", hint=_HINT)
    return PromptSet(path, hashlib.sha256(content).hexdigest(), tuple(prompts.values()))


def _prompt(text: str, place: str, number: int) -> Prompt:
    try:
        row = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{place}: not JSON: {error}", hint=_HINT) from error
    if not isinstance(row, dict):
        raise ConfigError(f"{place}: expected an object, found {type(row).__name__}", hint=_HINT)
    messages = row.get("messages")
    if messages is None and isinstance(row.get("prompt"), str) and row["prompt"]:
        messages = [{"role": "user", "content": row["prompt"]}]
    if not isinstance(messages, list) or not messages:
        raise ConfigError(f"{place}: expected messages or a prompt, found keys {', '.join(row) or 'none'}", hint=_HINT)
    for message in messages:
        is_message = isinstance(message, dict) and message.get("role") in _ROLES and message.get("content")
        if not is_message:
            raise ConfigError(
                f"{place}: expected a message with role and content, found {str(message)[:80]!r}", hint=_HINT
            )
    if messages[-1]["role"] == "assistant":
        messages = messages[:-1]
        if not messages:
            raise ConfigError(f"{place}: there is an answer and no question", hint=_HINT)
    category = row.get("category")
    identity = row.get("id")
    return Prompt(
        id=f"line-{number}" if identity is None else str(identity),
        messages=tuple(messages),
        category=None if category is None else str(category),
    )
