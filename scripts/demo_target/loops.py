"""Measure how much an answer repeats itself. The demo's drafter must not earn its acceptance from loops."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

SPAN = 16


@dataclass(frozen=True)
class LoopReport:
    """Over a set of answers: shares are pooled over all tokens unless they say mean."""

    num_answers: int
    mean_length_tokens: float
    repeated_16gram_share: float
    distinct_4gram_share: float
    mean_distinct_4gram_share: float


def report_loops(answers: Sequence[Sequence[int]]) -> LoopReport:
    """Pool the answers; the distinct share counts 4-grams unique within their own answer."""
    num_tokens = sum(map(len, answers))
    repeated = sum(sum(in_repeated_span(a, SPAN)) for a in answers)
    grams = [ngrams(a, 4) for a in answers]
    total = sum(map(len, grams))
    shares = [len(set(g)) / len(g) for g in grams if g]
    return LoopReport(
        num_answers=len(answers),
        mean_length_tokens=num_tokens / max(1, len(answers)),
        repeated_16gram_share=repeated / max(1, num_tokens),
        distinct_4gram_share=sum(len(set(g)) for g in grams) / max(1, total),
        mean_distinct_4gram_share=sum(shares) / max(1, len(shares)),
    )


def in_repeated_span(tokens: Sequence[int], span: int) -> list[bool]:
    """For each token, whether it lies in a span that occurs more than once in the same answer."""
    grams = ngrams(tokens, span)
    counts = Counter(grams)
    flags = [False] * len(tokens)
    for start, gram in enumerate(grams):
        if counts[gram] > 1:
            flags[start : start + span] = [True] * span
    return flags


def completes_repeat(tokens: Sequence[int], span: int) -> list[bool]:
    """For each token, whether it ends a span seen earlier in the same answer: what unlikelihood punishes."""
    seen: set[tuple[int, ...]] = set()
    flags = [False] * len(tokens)
    for start, gram in enumerate(ngrams(tokens, span)):
        flags[start + span - 1] = gram in seen
        seen.add(gram)
    return flags


def lookup_share(answers: Sequence[Sequence[int]]) -> float:
    """Share of tokens that two preceding tokens give away, by the commonest successor in the other answers.

    High values mean that all answers are alike: a table could then draft for the model.
    """
    successors: defaultdict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    grams = [gram for answer in answers for gram in set(ngrams(answer, 3))]
    for first, second, third in grams:
        successors[first, second][third] += 1
    hits = total = 0
    for answer in answers:
        own = set(ngrams(answer, 3))
        for first, second, third in ngrams(answer, 3):
            others = {t: n - ((first, second, t) in own) for t, n in successors[first, second].items()}
            best = max(others, key=lambda t: others[t])
            hits += others[best] > 0 and best == third
            total += 1
    return hits / max(1, total)


def alike_figures(answers: Sequence[Sequence[int]], group: int = 50) -> dict[str, float]:
    """How alike answers are, as means over groups of `group` (both figures depend on how many one pools).

    `pooled_distinct_4gram_share` counts 4-grams unique among all answers of the group.
    """
    groups = [answers[start : start + group] for start in range(0, len(answers), group)]
    pooled = [[gram for answer in part for gram in ngrams(answer, 4)] for part in groups]
    shares = [len(set(grams)) / len(grams) for grams in pooled if grams]
    return {
        "pooled_distinct_4gram_share": sum(shares) / max(1, len(shares)),
        "lookup_share": sum(map(lookup_share, groups)) / max(1, len(groups)),
    }


def distinct_share(tokens: Sequence[int], span: int = 4) -> float:
    """Unique over total n-grams; 1.0 for an answer too short to hold one."""
    grams = ngrams(tokens, span)
    return len(set(grams)) / len(grams) if grams else 1.0


def ngrams(tokens: Sequence[int], span: int) -> list[tuple[int, ...]]:
    """Every run of `span` tokens, in order."""
    return [tuple(tokens[i : i + span]) for i in range(len(tokens) - span + 1)]
