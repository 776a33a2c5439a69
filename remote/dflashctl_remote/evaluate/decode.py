"""Free-running greedy decoding of one prompt, plainly and with a drafter's blocks.

Speculative decoding is lossless: every token is the target's own arg-max, so that in float32 both give the same
tokens; in bfloat16 the two order their sums differently and ties may fall the other way. Tau counts verify steps:
the first token comes from the prefill, which is no verify step, and belongs to no step.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from dflashctl_remote.target.cache import RollbackCache
from dflashctl_remote.target.load import Target
from dflashctl_remote.target.taps import batch_states


class Proposer(Protocol):
    """What drafts: drafter/session.py, or anything else with these three."""

    def reset(self) -> None:
        """A new prompt begins."""

    def extend(self, taps_TF: Tensor) -> None:
        """Tapped target states of the tokens that are now certain, the anchor's not among them."""

    def propose(self, anchor_token: int, block_size: int | None = None) -> list[int]:
        """block_size - 1 tokens to follow the anchor."""


@dataclass(frozen=True)
class Decoded:
    tokens: tuple[int, ...]
    """The answer, with the stop token that ended it."""
    accepted_per_step: tuple[int, ...]
    """Tokens that each verify step emitted: accepted drafts and the bonus token. Sum = len(tokens) - 1."""
    drafts_per_step: tuple[int, ...]
    """Accepted drafts alone: one less, or the same where a drafted stop token ended the answer."""
    proposals_per_step: tuple[tuple[int, ...], ...]
    """All that was proposed, accepted or not: a block less its anchor, fewer in the shortened last one."""


def plain_greedy(
    target: Target, prompt_ids: Sequence[int], *, max_new_tokens: int, eos_token_ids: Collection[int]
) -> tuple[int, ...]:
    """The target's arg-max token by token, until a stop token (kept) or `max_new_tokens`."""
    cache = DynamicCache(config=target.model.config)
    tokens: list[int] = []
    ids = list(prompt_ids)
    while not tokens or (len(tokens) < max_new_tokens and tokens[-1] not in eos_token_ids):
        with torch.no_grad():
            ids_BT = torch.tensor([ids], device=target.device)
            _, final_BTE = batch_states(target.decoder, ids_BT, (), past_key_values=cache, use_cache=True)
            tokens.append(int(target.logits(final_BTE[0, -1]).argmax()))
        ids = tokens[-1:]
    return tuple(tokens)


def speculative_greedy(
    target: Target,
    proposer: Proposer,
    prompt_ids: Sequence[int],
    *,
    tap_layers: Sequence[int],
    block_size: int,
    max_new_tokens: int,
    eos_token_ids: Collection[int],
) -> Decoded:
    """Draft, verify, keep the leading drafts that are the target's arg-max, and add its own next token.

    The last block is shortened to the tokens still wanted; a stop token among the accepted ones ends the answer.
    """
    cache = RollbackCache(target, tap_layers)
    proposer.reset()
    prefill = cache.prefill(prompt_ids)
    proposer.extend(prefill.taps_KF)
    tokens = [int(prefill.logits_KV[0].argmax())]
    accepted_per_step: list[int] = []
    drafts_per_step: list[int] = []
    proposals_per_step: list[tuple[int, ...]] = []
    while len(tokens) < max_new_tokens and tokens[-1] not in eos_token_ids:
        anchor = tokens[-1]
        size = min(block_size, max_new_tokens - len(tokens))
        drafts = proposer.propose(anchor, size) if size > 1 else []
        assert len(drafts) == size - 1
        seen = cache.verify([anchor, *drafts])
        greedy = seen.logits_KV.argmax(dim=-1).tolist()
        num_accepted = num_leading_matches(drafts, greedy)
        emitted = _up_to_stop([*drafts[:num_accepted], greedy[num_accepted]], eos_token_ids)
        cache.commit(num_accepted + 1)
        proposer.extend(seen.taps_KF[: num_accepted + 1])
        tokens += emitted
        accepted_per_step.append(len(emitted))
        drafts_per_step.append(min(num_accepted, len(emitted)))
        proposals_per_step.append(tuple(drafts))
    return Decoded(tuple(tokens), tuple(accepted_per_step), tuple(drafts_per_step), tuple(proposals_per_step))


def num_leading_matches(drafts: Sequence[int], greedy: Sequence[int]) -> int:
    """Drafts accepted: how many from the first on equal the target's own tokens."""
    for index, draft in enumerate(drafts):
        if index >= len(greedy) or draft != greedy[index]:
            return index
    return len(drafts)


def _up_to_stop(tokens: list[int], eos_token_ids: Collection[int]) -> list[int]:
    for index, token in enumerate(tokens):
        if token in eos_token_ids:
            return tokens[: index + 1]
    return tokens
