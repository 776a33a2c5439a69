"""How much of an answer repeats itself: loops are drafted for free and pass for skill, so every tau is shown beside it.

Plain functions of token ids; nothing here knows of models.
"""

from collections import Counter
from collections.abc import Sequence

REPEAT_NGRAM = 16


def repeated_mask(tokens: Sequence[int], ngram: int = REPEAT_NGRAM) -> list[bool]:
    """For each token whether an n-gram around it occurs more than once in this answer, first time included."""
    mask = [False] * len(tokens)
    places: dict[tuple[int, ...], list[int]] = {}
    for start in range(len(tokens) - ngram + 1):
        places.setdefault(tuple(tokens[start : start + ngram]), []).append(start)
    for starts in places.values():
        if len(starts) > 1:
            for start in starts:
                mask[start : start + ngram] = [True] * ngram
    return mask


def repeated_share(answers: Sequence[Sequence[int]]) -> float:
    """Share of all tokens that are repeated; 0 without tokens."""
    num_tokens = sum(len(tokens) for tokens in answers)
    return sum(sum(repeated_mask(tokens)) for tokens in answers) / num_tokens if num_tokens else 0.0


def distinct_share(answers: Sequence[Sequence[int]], ngram: int = 4) -> float:
    """Distinct n-grams / n-grams, pooled over the answers; 1 where there is none.

    Pooled, it also falls when answers share phrases; `distinct_share([answer])` is that of one answer.
    """
    counts: Counter[tuple[int, ...]] = Counter()
    for tokens in answers:
        counts.update(tuple(tokens[start : start + ngram]) for start in range(len(tokens) - ngram + 1))
    return len(counts) / counts.total() if counts else 1.0
