"""Find what answers say too often: n-grams and successors that many of them share. Not for loops inside one.

After Li et al. 2020, "Don't Say That! Making Inconsistent Dialogue Unlikely with Unlikelihood Training",
section 3.2: tokens that a model uses more often than people do are made less likely; here the tokens are n-grams.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from scripts.demo_target.loops import ngrams

Gram = tuple[int, ...]
SuccessorTable = dict[tuple[int, int], int]


@dataclass(frozen=True)
class RealUse:
    """In how many of `num_answers` real answers an n-gram of `span` tokens stands."""

    span: int
    num_answers: int
    num_with: Counter[Gram]

    @classmethod
    def of(cls, answers: Sequence[Sequence[int]], span: int) -> RealUse:
        return cls(span, len(answers), _num_answers_with(answers, span))

    def overused(self, answers: Sequence[Sequence[int]], min_share: float, ratio: float) -> set[Gram]:
        """N-grams in at least `min_share` of `answers` and more than `ratio` times as common as in real ones."""
        found = _num_answers_with(answers, self.span)
        scale = len(answers) / self.num_answers
        return {
            gram
            for gram, count in found.items()
            if count >= min_share * len(answers) and count > ratio * scale * self.num_with[gram]
        }


def completes_any(tokens: Sequence[int], wanted: set[Gram], span: int) -> list[bool]:
    """For each token, whether it ends one of the wanted n-grams."""
    flags = [False] * len(tokens)
    for start, gram in enumerate(ngrams(tokens, span)):
        flags[start + span - 1] = gram in wanted
    return flags


def successor_table(answers: Sequence[Sequence[int]]) -> SuccessorTable:
    """The commonest successor of every two tokens, each answer counted once."""
    successors: defaultdict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    for answer in answers:
        for first, second, third in set(ngrams(answer, 3)):
            successors[first, second][third] += 1
    return {pair: counts.most_common(1)[0][0] for pair, counts in successors.items()}


def given_away_share(answer: Sequence[int], table: SuccessorTable) -> float:
    """Share of tokens that the table knows from the two before; 1.0 for an answer too short to hold one."""
    grams = ngrams(answer, 3)
    return sum(table.get((first, second)) == third for first, second, third in grams) / len(grams) if grams else 1.0


def _num_answers_with(answers: Sequence[Sequence[int]], span: int) -> Counter[Gram]:
    return Counter(gram for answer in answers for gram in set(ngrams(answer, span)))
