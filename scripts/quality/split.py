"""Which prompts are held out: by prompt, so that no answer to one of them is trained on. Pure."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

HELD_OUT_SHARE = 0.2
MAX_HELD_OUT = 24
"""Of a category: an evaluation decodes one prompt at a time."""


def split(rows: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(train, held out): of every category evenly spread prompts are held out, at least one of two.

    Rows are {"id", "messages", "category"}. A prompt whose words occur twice is one prompt: the later ones are left
    out, whatever case or spaces they are written with.
    """
    by_category: dict[str, list[dict[str, Any]]] = defaultdict(list)
    seen: set[str] = set()
    for row in rows:
        words = " ".join(str(row["messages"][-1]["content"]).lower().split())
        if words not in seen:
            seen.add(words)
            by_category[row["category"]].append(row)
    train: list[dict[str, Any]] = []
    held_out: list[dict[str, Any]] = []
    for category in sorted(by_category):
        members = by_category[category]
        count = min(MAX_HELD_OUT, round(HELD_OUT_SHARE * len(members))) or (len(members) > 1)
        chosen = {(2 * i + 1) * len(members) // (2 * count) for i in range(count)}
        for index, row in enumerate(members):
            (held_out if index in chosen else train).append(row)
    return train, held_out
