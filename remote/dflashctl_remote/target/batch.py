"""Decoding of many prompts at once, for making data; one answer at a time is evaluate/decode.py.

Prompts of different lengths are padded on the left. For attention the mask and the positions make up for it. In a
Gated DeltaNet layer transformers zeroes what enters it at padding: then keys and values are zero, the state stays
zero until the first token, and the convolution sees the zeros that stand before any text anyway. The tests compare
both kinds of target with decoding each prompt alone.
"""

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from dflashctl_remote.target.load import Target
from dflashctl_remote.target.taps import batch_states


def greedy_batch(
    target: Target, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, eos_token_ids: Collection[int]
) -> list[tuple[int, ...]]:
    """The target's arg-max for every prompt, until a stop token (kept) or `max_new_tokens`."""
    return answer_batch(
        target,
        prompts,
        max_new_tokens=max_new_tokens,
        eos_token_ids=eos_token_ids,
        choose=lambda logits_BV: logits_BV.argmax(dim=-1),
    )


@torch.no_grad()
def answer_batch(
    target: Target,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    eos_token_ids: Collection[int],
    choose: Callable[[Tensor], Tensor],
) -> list[tuple[int, ...]]:
    """An answer for every prompt, until a stop token (kept) or `max_new_tokens`; `choose` makes tokens_B of logits_BV.

    Answers that ended are among the B rows for a while; what is chosen for them is not kept.
    """
    answers: list[list[int]] = [[] for _ in prompts]
    rows = list(range(len(prompts)))
    ids_BT, mask_BT = _padded_left(prompts, target.device)
    positions_BT = (mask_BT.cumsum(dim=-1) - 1).clamp(min=0)
    cache = DynamicCache(config=target.model.config)
    while True:
        _, final_BTE = batch_states(
            target.decoder,
            ids_BT,
            (),
            attention_mask=mask_BT,
            position_ids=positions_BT,
            past_key_values=cache,
            use_cache=True,
        )
        next_B = choose(target.logits(final_BTE[:, -1]))
        for row, token in zip(rows, next_B.tolist(), strict=True):
            if not _is_done(answers[row], max_new_tokens, eos_token_ids):
                answers[row].append(token)
        live = [b for b, row in enumerate(rows) if not _is_done(answers[row], max_new_tokens, eos_token_ids)]
        if not live:
            return [tuple(answer) for answer in answers]
        # Finished rows compute on unheard; taking them out copies the cache, so only when half are finished.
        if 2 * len(live) <= len(rows):
            keep = torch.tensor(live, device=target.device)
            cache.reorder_cache(keep)
            next_B, mask_BT, positions_BT = next_B[keep], mask_BT[keep], positions_BT[keep]
            rows = [rows[b] for b in live]
        ids_BT = next_B[:, None]
        mask_BT = torch.cat([mask_BT, mask_BT.new_ones((len(rows), 1))], dim=1)
        positions_BT = positions_BT[:, -1:] + 1


def _padded_left(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """(ids, mask), both [B, T]; the mask is 1 at tokens."""
    longest = max(len(prompt) for prompt in prompts)
    ids_BT = torch.zeros((len(prompts), longest), dtype=torch.int64)
    mask_BT = torch.zeros_like(ids_BT)
    for b, prompt in enumerate(prompts):
        ids_BT[b, longest - len(prompt) :] = torch.tensor(list(prompt))
        mask_BT[b, longest - len(prompt) :] = 1
    return ids_BT.to(device), mask_BT.to(device)


def _is_done(answer: list[int], max_new_tokens: int, eos_token_ids: Collection[int]) -> bool:
    return len(answer) >= max_new_tokens or (bool(answer) and answer[-1] in eos_token_ids)
