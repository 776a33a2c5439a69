"""Anchor attention written out on the dense grid, in the dtype that it is given: what the kernels are compared with.

Axes as in visible.py; H heads, G key-value heads, C head size.
"""

import torch
from torch import Tensor

from dflashctl_remote.kernels.anchor_attention.visible import Visible, mask_mod


def anchor_attention(query_HQC: Tensor, key_GSC: Tensor, value_GSC: Tensor, visible: Visible) -> Tensor:
    """softmax(q k^T / sqrt(C)) v over the visible keys: [H, Q, C]. Heads h*H/G.. share key-value head h."""
    num_groups = query_HQC.shape[0] // key_GSC.shape[0]
    key_HSC, value_HSC = key_GSC.repeat_interleave(num_groups, 0), value_GSC.repeat_interleave(num_groups, 0)
    scores_HQS = query_HQC @ key_HSC.transpose(1, 2) * query_HQC.shape[-1] ** -0.5
    scores_HQS = scores_HQS.masked_fill(~dense(visible), float("-inf"))
    return scores_HQS.softmax(dim=-1) @ value_HSC


def dense(visible: Visible) -> Tensor:
    """The rule on the whole grid: bool [Q, S]."""
    device = visible.anchors_N.device
    query = torch.arange(visible.num_queries, device=device)[:, None]
    key = torch.arange(visible.num_keys, device=device)[None, :]
    none = torch.zeros((), dtype=torch.int64, device=device)
    return mask_mod(visible)(none, none, query, key)
