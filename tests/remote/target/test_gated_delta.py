import pytest
import torch
from torch import Tensor

from dflashctl_remote.target.gated_delta import chunked_delta_rule

# one token, less than a chunk, a chunk, one more, several; long and short mixed
LENGTHS = (1, 130, 64, 65, 7, 200)
J, G, K, V = 2, 6, 16, 24


def inputs(lengths: tuple[int, ...], dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(sum(lengths), *shape, generator=generator, dtype=torch.float64)

    q, k = (torch.nn.functional.normalize(noise(J, K), dim=-1) for _ in range(2))
    drawn = (q, k, noise(G, V), -0.1 * noise(G).abs(), torch.sigmoid(noise(G)))
    return tuple(x.to(dtype) for x in drawn)


def token_by_token(
    q_TJK: Tensor, k_TJK: Tensor, v_TGV: Tensor, log_decay_TG: Tensor, beta_TG: Tensor, lengths: tuple[int, ...]
) -> Tensor:
    """The recurrence as it is written at the top of gated_delta.py."""
    q_TGK, k_TGK = (x.repeat_interleave(G // J, dim=1) for x in (q_TJK, k_TJK))
    out_TGV = torch.empty_like(v_TGV)
    token = 0
    for length in lengths:
        state_GKV = v_TGV.new_zeros(G, K, V)
        for _ in range(length):
            q, k, v = q_TGK[token], k_TGK[token], v_TGV[token]
            state_GKV = state_GKV * log_decay_TG[token].exp()[:, None, None]
            error_GV = v - torch.einsum("gkv,gk->gv", state_GKV, k)
            state_GKV = state_GKV + torch.einsum("g,gk,gv->gkv", beta_TG[token], k, error_GV)
            out_TGV[token] = torch.einsum("gkv,gk->gv", state_GKV, q) * K**-0.5
            token += 1
    return out_TGV


def test_chunks_give_what_the_recurrence_gives() -> None:
    drawn = inputs(LENGTHS)
    expected = token_by_token(*drawn, LENGTHS)
    assert torch.allclose(chunked_delta_rule(*drawn, LENGTHS), expected, rtol=0, atol=1e-12)


def test_float32_is_close_to_float64() -> None:
    expected = chunked_delta_rule(*inputs(LENGTHS), LENGTHS)
    got = chunked_delta_rule(*inputs(LENGTHS, torch.float32), LENGTHS)
    assert got.dtype == torch.float32
    assert torch.allclose(got.double(), expected, rtol=0, atol=1e-5)


def test_bfloat16_comes_back_as_bfloat16() -> None:
    got = chunked_delta_rule(*inputs(LENGTHS, torch.bfloat16), LENGTHS)
    expected = chunked_delta_rule(*(x.double() for x in inputs(LENGTHS, torch.bfloat16)), LENGTHS)
    assert got.dtype == torch.bfloat16
    assert torch.allclose(got.double(), expected, rtol=1e-2, atol=1e-3)


def test_it_agrees_with_transformers_on_one_document() -> None:
    from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule

    q, k, v, log_decay, beta = inputs((150,), torch.float32)
    wide_q, wide_k = (x.repeat_interleave(G // J, dim=1) for x in (q, k))
    expected, _ = torch_chunk_gated_delta_rule(wide_q[None], wide_k[None], v[None], g=log_decay[None], beta=beta[None])
    assert torch.allclose(chunked_delta_rule(q, k, v, log_decay, beta, (150,)), expected[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("changed", [0, 1, 3, 5])
def test_a_document_leaves_every_bit_of_the_others(changed: int) -> None:
    drawn = inputs(LENGTHS)
    before = chunked_delta_rule(*drawn, LENGTHS).split(LENGTHS)
    start = sum(LENGTHS[:changed])
    drawn[2][start : start + LENGTHS[changed]] += 1.0
    after = chunked_delta_rule(*drawn, LENGTHS).split(LENGTHS)
    for n, (old, new) in enumerate(zip(before, after, strict=True)):
        assert torch.equal(old, new) == (n != changed)
