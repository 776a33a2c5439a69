"""What drafting without a model would have scored: the bar that a trained drafter's tau has to clear.

Greedy decoding is lossless, so the answer is the same whoever drafts, and how many tokens a look-up gets accepted is
a function of the known tokens alone: nothing is decoded here. Both walk the answer as free-running decoding does,
the first token given by the prefill, each step emitting the matching drafts and one bonus token.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dflashctl_remote.evaluate.decode import num_leading_matches

Draft = Callable[[list[int], int], list[int]]
"""(prompt and answer so far, drafts wanted) -> that many drafts, or fewer."""


def accepted_per_step(draft: Draft, prompt_ids: Sequence[int], answer: Sequence[int], *, block_size: int) -> list[int]:
    """Tokens that each verify step would have emitted, bonus included. Sum = len(answer) - 1."""
    steps: list[int] = []
    position = 1
    while position < len(answer):
        remaining = answer[position:]
        drafts = draft([*prompt_ids, *answer[:position]], block_size - 1)
        # Beyond the answer's last token nothing can be emitted, as in the last, shortened block.
        steps.append(min(num_leading_matches(drafts, remaining) + 1, len(remaining)))
        position += steps[-1]
    return steps


def own_text_draft(known: list[int], num_drafts: int) -> list[int]:
    """Copy what followed the latest earlier occurrence of the last two tokens, running on into the copy itself."""
    if len(known) < 3:
        return []
    last = known[-2:]
    for start in range(len(known) - 3, -1, -1):
        if known[start : start + 2] == last:
            text = list(known)
            for source in range(start + 2, start + 2 + num_drafts):
                text.append(text[source])
            return text[len(known) :]
    return []


class BigramTable:
    """Most frequent supervised successor of two tokens, of one token where the pair is unknown; ties: smallest id."""

    def __init__(self, documents: Iterable[tuple[npt.NDArray[np.integer[Any]], npt.NDArray[np.bool_]]]) -> None:
        """Documents are (input ids, is supervised); only supervised tokens count as successors."""
        pairs: list[npt.NDArray[np.integer[Any]]] = []
        singles: list[npt.NDArray[np.integer[Any]]] = []
        for ids, is_supervised in documents:
            after_one = is_supervised[1:]
            singles.append(np.stack([ids[:-1], ids[1:]], axis=1)[after_one])
            after_two = is_supervised[2:]
            pairs.append(np.stack([ids[:-2], ids[1:-1], ids[2:]], axis=1)[after_two])
        self._after_two = _most_frequent(pairs)
        self._after_one = _most_frequent(singles)

    def __call__(self, known: list[int], num_drafts: int) -> list[int]:
        """Drafts by repeated application; ends where even the last token was never followed by anything."""
        text = known[-2:]
        drafts: list[int] = []
        while len(drafts) < num_drafts:
            token = self._after_two.get(tuple(text[-2:]))
            if token is None:
                token = self._after_one.get((text[-1],))
            if token is None:
                break
            drafts.append(token)
            text = [text[-1], token]
        return drafts


def _most_frequent(parts: Sequence[npt.NDArray[np.integer[Any]]]) -> dict[tuple[int, ...], int]:
    """Rows (context.., successor) -> {context: its most frequent successor}."""
    if not parts:
        return {}
    rows, counts = np.unique(np.concatenate(parts), axis=0, return_counts=True)
    # Sorted by context, then rarest first, then largest id first: what is written last stays.
    order = np.lexsort((-rows[:, -1], counts, *rows[:, -2::-1].T))
    return {tuple(row[:-1]): row[-1] for row in rows[order].tolist()}
