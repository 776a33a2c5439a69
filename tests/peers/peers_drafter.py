"""A tiny drafter whose weights are large enough that attention matters."""

import torch

from dflashctl_remote.drafter.model import Drafter
from dflashctl_remote.spec.drafter import DrafterConfig

KINDS: dict[str, dict[str, object]] = {
    "full": {"layer_types": ("full_attention", "full_attention"), "sliding_window": None},
    "sliding": {"layer_types": ("sliding_attention", "sliding_attention"), "sliding_window": 12},
    "mixed": {"layer_types": ("sliding_attention", "full_attention"), "sliding_window": 12},
}


def make_drafter(kind: str, **changes: object) -> Drafter:
    """A tiny drafter with weights large enough that attention matters."""
    config = DrafterConfig.model_validate(
        {
            "hidden_size": 48,
            "num_layers": 2,
            "num_heads": 4,
            "num_kv_heads": 2,
            "head_dim": 16,
            "intermediate_size": 80,
            "vocab_size": 97,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e5,
            "max_position_embeddings": 512,
            "is_causal": None,
            "block_size": 8,
            "mask_token_id": 96,
            "tap_layers": (1, 2, 4),
            "num_target_layers": 6,
            **KINDS[kind],
            **changes,
        }
    )
    drafter = Drafter(config)
    drafter.init_weights(seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.ndim > 1:
                parameter.mul_(6)
            else:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return drafter
