"""Drafting one answer: keys and values of the accepted context are kept, a block is proposed from them.

One sequence. Axes as in model.py.
"""

import torch
from torch import Tensor

from dflashctl_remote.drafter.attention import eager_attend
from dflashctl_remote.drafter.masks import Layout
from dflashctl_remote.drafter.model import Drafter, FrozenEnds, KeysValues
from dflashctl_remote.losses.linear_ce import linear_argmax, linear_logits


class DraftSession:
    """Context grows by `extend`; `propose` and `propose_logits` never change it."""

    def __init__(self, drafter: Drafter, target: FrozenEnds) -> None:
        self._drafter = drafter
        self._target = target
        self._context: tuple[KeysValues, ...] | None = None
        self.num_context = 0

    def reset(self) -> None:
        """Forget the answer; the next `extend` starts at position 0."""
        self._context = None
        self.num_context = 0

    @torch.no_grad()
    def extend(self, taps_TF: Tensor) -> None:
        """Append the tapped target states of tokens that are now certain, in order: [T, F]."""
        drafter = self._drafter
        positions = torch.arange(self.num_context, self.num_context + taps_TF.shape[0], device=taps_TF.device)
        new = drafter.context_keys_values(drafter.context_states(taps_TF.to(drafter.fc.weight.dtype)), positions)
        if self._context is None:
            self._context = new
        else:
            self._context = tuple(
                KeysValues(
                    torch.cat((old.key_GTC, more.key_GTC), dim=1),
                    torch.cat((old.value_GTC, more.value_GTC), dim=1),
                )
                for old, more in zip(self._context, new, strict=True)
            )
        self.num_context += taps_TF.shape[0]

    @torch.no_grad()
    def propose(self, anchor_token: int, block_size: int | None = None) -> list[int]:
        """Greedy drafts for the slots after the anchor, which stands at position `num_context`.

        `block_size` shortens the block (the last one of an answer); None: the drafter's own. Gives block_size - 1 ids.
        """
        return linear_argmax(self._slot_states(anchor_token, block_size), self._target.head_VE).tolist()

    @torch.no_grad()
    def propose_logits(self, anchor_token: int, block_size: int | None = None) -> Tensor:
        """The drafter's logits of the slots that `propose` takes the arg-max of: float32 [block_size - 1, V]."""
        return linear_logits(self._slot_states(anchor_token, block_size), self._target.head_VE)

    def _slot_states(self, anchor_token: int, block_size: int | None) -> Tensor:
        """Final states of the slots after the anchor: [block_size - 1, D]."""
        assert self._context is not None, "extend() with the prompt's states comes first"
        config = self._drafter.config
        size = block_size or config.block_size
        device = self._context[0].key_GTC.device
        layout = _one_block(self.num_context, size, device)
        ids_K = torch.full((size,), config.mask_token_id, dtype=torch.int64, device=device)
        ids_K[0] = anchor_token
        block_KD = self._target.embed(ids_K).to(self._drafter.fc.weight.dtype)
        hidden_KD = self._drafter(block_KD, layout.block_positions_Q(), self._context, eager_attend(config, layout))
        return hidden_KD[1:]


def _one_block(num_context: int, block_size: int, device: torch.device) -> Layout:
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    positions = torch.arange(num_context, device=device)
    return Layout(
        context_positions_T=positions,
        context_documents_T=torch.zeros_like(positions),
        anchor_indices_N=zero + num_context,
        anchor_positions_N=zero + num_context,
        anchor_documents_N=zero,
        block_size=block_size,
    )
