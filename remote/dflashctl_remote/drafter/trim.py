"""What a training step need not compute, and leaves out on a GPU: the same loss and gradients from fewer products.

Blocks enter the first layer as their anchors' embeddings and one mask token's, again and again: only these N + 1 rows
are normed and projected, and then spread over the slots. And no loss reads slot 0 behind the last layer's attention:
from there on only the other slots go on. At five layers and blocks of 16 that is 1.5 % of a step's products.

Axes: N blocks, K slots, Q = N*K block tokens, U = N + 1 distinct rows, D width, X any width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dflashctl_remote.drafter.model import FrozenEnds


@dataclass(frozen=True)
class Trim:
    distinct_UD: Tensor
    """Embeddings of the blocks' anchors, then the mask token's."""
    block_size: int

    @classmethod
    def of(cls, ends: FrozenEnds, ids_NK: Tensor, dtype: torch.dtype) -> "Trim":
        """Of what `block_ids` gives: each block's slots from 1 on are one and the same token, in all blocks."""
        ids_U = torch.cat((ids_NK[:, 0], ids_NK[:1, -1]))
        return cls(ends.embed(ids_U).to(dtype), ids_NK.shape[1])

    def spread(self, rows_UX: Tensor) -> Tensor:
        """[U, X] -> [Q, X]. The mask token's gradient is the sum over all slots that it fills."""
        anchors_N1X, mask_11X = rows_UX[:-1, None], rows_UX[None, -1:]
        masks_NMX = mask_11X.expand(len(anchors_N1X), self.block_size - 1, -1)
        return torch.cat((anchors_N1X, masks_NMX), dim=1).flatten(0, 1)

    def scorable(self, rows_QX: Tensor) -> Tensor:
        """[N*K, X] -> [N*(K-1), X]: without every block's slot 0, whose gradient is zero."""
        return rows_QX.unflatten(0, (-1, self.block_size))[:, 1:].flatten(0, 1)

    def scorable_index(self, rows_R: Tensor, blocks_R: Tensor) -> Tensor:
        """Where rows of [Q] stand in what `scorable` gives."""
        return rows_R - blocks_R - 1
