"""Our exported checkpoint in the public `dflash` package's draft model."""

from pathlib import Path

import pytest
import torch

from dflashctl_remote.drafter.attention import eager_attend
from dflashctl_remote.drafter.checkpoint import save_drafter
from dflashctl_remote.drafter.masks import Layout
from dflashctl_remote.drafter.model import Drafter

dflash = pytest.importorskip("dflash.model", reason="the dflash package is not here: run `make test-peers`")


@pytest.mark.parametrize("num_context", [5, 40])
@torch.no_grad()
def test_an_exported_checkpoint_gives_the_same_states(drafter: Drafter, num_context: int, tmp_path: Path) -> None:
    """To 1e-5 in fp32, with a context shorter and longer than the sliding window of 12."""
    save_drafter(drafter, tmp_path)
    theirs = dflash.DFlashDraftModel.from_pretrained(tmp_path, dtype=torch.float32).eval()
    config, size = drafter.config, drafter.config.block_size
    assert theirs.block_size == size
    assert theirs.mask_token_id == config.mask_token_id
    assert tuple(theirs.target_layer_ids) == config.tap_layers

    generator = torch.Generator().manual_seed(0)
    taps_TF = torch.randn(num_context, len(config.tap_layers) * config.hidden_size, generator=generator)
    block_KD = torch.randn(size, config.hidden_size, generator=generator)
    wanted = theirs(
        position_ids=torch.arange(num_context + size)[None],
        noise_embedding=block_KD[None],
        target_hidden=taps_TF[None],
    )[0]

    positions_T, zero = torch.arange(num_context), torch.zeros(1, dtype=torch.int64)
    layout = Layout(positions_T, torch.zeros_like(positions_T), zero + num_context, zero + num_context, zero, size)
    context = drafter.context_keys_values(drafter.context_states(taps_TF), positions_T)
    got = drafter(block_KD, layout.block_positions_Q(), context, eager_attend(config, layout))
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
