"""Whether the prompts of a dataset end as prompts end that are served: thinking on or off, or another template.

A drafter that was trained without thinking loses most of its acceptance where thinking is on, and no tensor shows it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dflashctl_remote.data.chat import ChatTokenizer
from dflashctl_remote.data.rows import BadRow
from dflashctl_remote.data.shards import Dataset
from dflashctl_remote.spec.data import Message

NUM_DOCUMENTS = 64
MIN_SHARE = 0.95
_SWITCHES: tuple[dict[str, Any], ...] = tuple(
    {name: value} for name in ("enable_thinking", "thinking") for value in (False, True)
)


@dataclass(frozen=True)
class TemplateFinding:
    num_documents: int
    """Looked at."""
    num_alike: int
    """Whose first prompt ends as the template ends a prompt now."""
    says: str
    """What differs; empty if nothing does."""

    @property
    def is_alike(self) -> bool:
        return not self.says


def compare_template(
    chat: ChatTokenizer, dataset: Dataset, arguments: Mapping[str, Any] | None = None
) -> TemplateFinding | None:
    """Documents of the dataset against the template as it is served, with the template's own `arguments`.

    None where the template cannot render one message of the user alone.
    """
    served = prompt_end(chat, arguments)
    if served is None:
        return None
    prompts = _first_prompts(dataset)
    num_alike = _num_ending(prompts, served)
    if num_alike >= MIN_SHARE * len(prompts):
        return TemplateFinding(len(prompts), num_alike, "")
    shown = _shown(arguments)
    says = f"{len(prompts) - num_alike} of {len(prompts)} prompts of {dataset.folder} end otherwise than served{shown}"
    for switch in _SWITCHES:
        other = prompt_end(chat, switch)
        if other is not None and other != served and _num_ending(prompts, other) >= MIN_SHARE * len(prompts):
            return TemplateFinding(len(prompts), num_alike, f"{says}: they end as with{_shown(switch)}")
    if dataset.info.template_sha256 != chat.template_sha256:
        says += ": it was made with another chat template"
    return TemplateFinding(len(prompts), num_alike, says)


def prompt_end(chat: ChatTokenizer, arguments: Mapping[str, Any] | None = None) -> tuple[int, ...] | None:
    """Tokens that the template puts between the user's last word and the answer."""
    try:
        one, other = (
            chat.prompt_ids([Message(role="user", content=text)], arguments) for text in ("a", "Why is that so?")
        )
    except BadRow:
        return None
    num_common = 0
    while num_common < min(len(one), len(other)) and one[-1 - num_common] == other[-1 - num_common]:
        num_common += 1
    return tuple(one[len(one) - num_common :])


def _first_prompts(dataset: Dataset) -> list[list[int]]:
    """Of documents spread evenly over the dataset."""
    chosen = np.unique(np.linspace(0, len(dataset) - 1, NUM_DOCUMENTS).astype(int))
    documents = [dataset.tokens(int(index)) for index in chosen]
    return [d.input_ids[: int(d.is_supervised.argmax())].tolist() for d in documents]


def _num_ending(prompts: list[list[int]], end: tuple[int, ...]) -> int:
    return sum(tuple(prompt[len(prompt) - len(end) :]) == end for prompt in prompts)


def _shown(arguments: Mapping[str, Any] | None) -> str:
    return "".join(f" {name}={str(value).lower()}" for name, value in (arguments or {}).items())
