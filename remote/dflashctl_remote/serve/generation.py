"""One answer in the making, a verify step at a time: draft, let the target judge, keep what holds.

Plain decoding is the same with no drafts. Nothing here knows of stop strings, HTTP or other requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from dflashctl_remote.serve.sampling import Sampler
from dflashctl_remote.target.cache import RollbackCache
from dflashctl_remote.target.load import Target


class Drafting(Protocol):
    """What drafts for one answer: drafter/session.py, or anything else with these three."""

    def extend(self, taps_TF: Tensor) -> None:
        """Tapped target states of the tokens that are now certain, the anchor's not among them."""

    def propose(self, anchor_token: int, block_size: int | None = None) -> list[int]:
        """block_size - 1 tokens to follow the anchor."""

    def propose_logits(self, anchor_token: int, block_size: int | None = None) -> Tensor:
        """The drafter's logits of these: [block_size - 1, V]."""


@dataclass(frozen=True)
class DraftPlan:
    """What drafts, which layers of the target it reads, and how many tokens it drafts a step (K)."""

    drafting: Drafting
    tap_layers: tuple[int, ...]
    num_draft_tokens: int


@dataclass(frozen=True)
class Step:
    """What one pass of the target gave; counted as vLLM does, before the answer is cut at a stop or at its length."""

    tokens: tuple[int, ...]
    """Accepted drafts and one more."""
    num_drafts: int = 0
    """0: of the prompt, of plain decoding, or at the end of the context."""
    num_accepted: int = 0


class Generation:
    """The first `step` runs the prompt, each later one a block. Goes on for ever: the caller says when it is enough.

    No block reaches beyond `max_length_tokens`, which is where the answer must have ended.
    """

    def __init__(
        self,
        target: Target,
        plan: DraftPlan | None,
        prompt_ids: Sequence[int],
        sampler: Sampler,
        *,
        max_length_tokens: int,
    ) -> None:
        assert 0 < len(prompt_ids) < max_length_tokens
        self._plan = plan
        self._prompt_ids = tuple(prompt_ids)
        self._sampler = sampler
        self._max_length_tokens = max_length_tokens
        self._cache = RollbackCache(target, plan.tap_layers if plan else ())
        self._anchor: int | None = None
        """The newest token, not in the cache yet."""

    def step(self) -> Step:
        if self._anchor is None:
            step = self._prefill()
        else:
            step = self._verify(self._anchor)
        self._anchor = step.tokens[-1]
        return step

    def _prefill(self) -> Step:
        seen = self._cache.prefill(self._prompt_ids)
        if self._plan:
            self._plan.drafting.extend(seen.taps_KF)
        return Step((self._sampler.first(seen.logits_KV[-1]),))

    def _verify(self, anchor: int) -> Step:
        assert self._cache.num_tokens < self._max_length_tokens, "the context is full"
        drafts, draft_probabilities = self._drafts(anchor)
        seen = self._cache.verify([anchor, *drafts])
        verdict = self._sampler.verdict(
            seen.logits_KV,
            drafts,
            draft_probabilities,
            num_before=self._cache.num_tokens + 1 - len(self._prompt_ids),
        )
        self._cache.commit(verdict.num_accepted + 1)
        if self._plan:
            self._plan.drafting.extend(seen.taps_KF[: verdict.num_accepted + 1])
        tokens = (*drafts[: verdict.num_accepted], verdict.next_token)
        return Step(tokens, len(drafts), verdict.num_accepted)

    def _drafts(self, anchor: int) -> tuple[list[int], Tensor | None]:
        """Tokens to follow the anchor, and the law that they were drawn from if they were drawn."""
        if self._plan is None:
            return [], None
        num_drafts = min(self._plan.num_draft_tokens, self._max_length_tokens - self._cache.num_tokens - 1)
        if num_drafts == 0:
            return [], None
        if self._sampler.is_greedy:
            return self._plan.drafting.propose(anchor, num_drafts + 1), None
        return self._sampler.draw_drafts(self._plan.drafting.propose_logits(anchor, num_drafts + 1))
