"""Choosing tokens exactly: what a request may set, the law that it gives, and which drafts of a block are kept.

Speculative rejection sampling (Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023, arXiv:2302.01318): a draft d
drawn from q is kept with probability min(1, p(d)/q(d)); the first one refused is replaced by a draw from
normalise(max(p - q, 0)); if all are kept, a bonus token is drawn from p. What comes out has the law p whatever q is.
Drafts that were not drawn (arg-max) are the case of a one-hot q. Axes: K tokens of a block, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dflashctl_remote.evaluate.decode import num_leading_matches


@dataclass(frozen=True)
class SamplingParams:
    temperature: float = 1.0
    """0: the arg-max, nothing is drawn."""
    top_k: int = 0
    """Only the k likeliest; 0: all."""
    top_p: float = 1.0
    """Of these the fewest, likeliest first, whose probabilities sum to at least top_p."""
    seed: int | None = None
    """None: another answer each time."""
    min_tokens: int = 0
    """The `stop_token_ids` cannot come before so many tokens."""
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """What a verify step decided."""

    num_accepted: int
    """Leading drafts that are kept."""
    next_token: int
    """After them: the replacement of the first refused draft, or the bonus token."""


class Sampler:
    """One request's choices. Its random numbers are its own: the same seed gives the same answer in any company."""

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self._generator = torch.Generator()
        if params.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(params.seed)

    @property
    def is_greedy(self) -> bool:
        return self.params.temperature == 0

    def first(self, logits_V: Tensor) -> int:
        """The token that follows the prompt."""
        return self.verdict(logits_V[None], (), None, num_before=0).next_token

    def verdict(
        self, logits_KV: Tensor, drafts: Sequence[int], draft_probabilities: Tensor | None, *, num_before: int
    ) -> Verdict:
        """Judge K - 1 drafts by the target's logits of the anchor and of each draft.

        `draft_probabilities` [K - 1, V] is the law that each draft was drawn from; None: they were not drawn.
        `num_before` tokens of the answer stand before the first draft.
        """
        assert logits_KV.shape[0] == len(drafts) + 1
        logits_KV = self._without_early_stops(logits_KV, num_before)
        if self.is_greedy:
            greedy = logits_KV.argmax(dim=-1).tolist()
            num_accepted = num_leading_matches(drafts, greedy)
            return Verdict(num_accepted, greedy[num_accepted])
        laws_KV = probabilities(logits_KV, self.params)
        for index, draft in enumerate(drafts):
            law_V = laws_KV[index]
            if draft_probabilities is None:
                draft_law_V = torch.zeros_like(law_V)
                draft_law_V[draft] = 1.0
            else:
                draft_law_V = draft_probabilities[index]
            if self._uniform() * float(draft_law_V[draft]) >= float(law_V[draft]):
                return Verdict(index, self._draw(_residual(law_V, draft_law_V)))
        return Verdict(len(drafts), self._draw(laws_KV[-1]))

    def draw_drafts(self, logits_KV: Tensor) -> tuple[list[int], Tensor]:
        """A draft for every row of the drafter's logits, and the law that each was drawn from: float64 [K, V]."""
        laws_KV = probabilities(logits_KV, self.params)
        return [self._draw(law_V) for law_V in laws_KV], laws_KV

    def _without_early_stops(self, logits_KV: Tensor, num_before: int) -> Tensor:
        num_rows = min(self.params.min_tokens - num_before, logits_KV.shape[0])
        if num_rows <= 0 or not self.params.stop_token_ids:
            return logits_KV
        logits_KV = logits_KV.clone()
        logits_KV[:num_rows, list(self.params.stop_token_ids)] = -torch.inf
        return logits_KV

    def _uniform(self) -> float:
        return float(torch.rand((), dtype=torch.float64, generator=self._generator))

    def _draw(self, weights_V: Tensor) -> int:
        """A token with probability proportional to its weight; never one of weight 0."""
        sums_V = weights_V.cumsum(dim=0)
        drawn = torch.tensor([self._uniform() * float(sums_V[-1])], dtype=sums_V.dtype)
        # Rounding may lift the product to the whole sum, past the last token.
        last = int(weights_V.nonzero()[-1])
        return min(int(torch.searchsorted(sums_V, drawn, right=True)), last)


def probabilities(logits_KV: Tensor, params: SamplingParams) -> Tensor:
    """The law of each row after temperature, then top_k, then top_p: float64 [K, V] on the CPU.

    Among equals the lowest id counts as the likelier, so that top_k keeps exactly k.
    """
    logits_KV = logits_KV.to(device="cpu", dtype=torch.float64)
    # The largest first becomes 0: no temperature, however small, then overflows.
    logits_KV = (logits_KV - logits_KV.amax(dim=-1, keepdim=True)) / params.temperature
    laws_KV = logits_KV.softmax(dim=-1)
    is_top_k = 0 < params.top_k < laws_KV.shape[-1]
    if not is_top_k and params.top_p >= 1:
        return laws_KV
    sorted_KV, order_KV = laws_KV.sort(dim=-1, descending=True, stable=True)
    if is_top_k:
        sorted_KV[:, params.top_k :] = 0
        sorted_KV /= sorted_KV.sum(dim=-1, keepdim=True)
    if params.top_p < 1:
        before_KV = sorted_KV.cumsum(dim=-1) - sorted_KV
        sorted_KV[before_KV >= params.top_p] = 0
        sorted_KV /= sorted_KV.sum(dim=-1, keepdim=True)
    return torch.zeros_like(laws_KV).scatter_(-1, order_KV, sorted_KV)


def _residual(law_V: Tensor, draft_law_V: Tensor) -> Tensor:
    """max(p - q, 0), not normalised."""
    rest_V = (law_V - draft_law_V).clamp(min=0)
    # Nothing is left only if p = q, and then a draft is refused by rounding alone.
    return rest_V if float(rest_V.sum()) > 0 else law_V
