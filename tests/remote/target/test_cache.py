from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, Mamba2Config, Mamba2ForCausalLM
from transformers.cache_utils import LinearAttentionLayer

from dflashctl_remote.spec.errors import BadInput
from dflashctl_remote.target.cache import RollbackCache
from dflashctl_remote.target.load import Target

TOLERANCE = 1e-5
# Thirty blocks add up, and the gated norm blows up rounding where its input is near zero (first token of a prompt).
LOOSE_TOLERANCE = 1e-4
TAPS = (1, 3)
BLOCK = 8


def ids(num_tokens: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(5, 300, (num_tokens,), generator=generator).tolist()


def fresh_cache(target: Target, tokens: list[int]) -> DynamicCache:
    cache = DynamicCache(config=target.model.config)
    with torch.no_grad():
        target.model(input_ids=torch.tensor([tokens]), past_key_values=cache, use_cache=True)
    return cache


def largest_difference(one: DynamicCache, other: DynamicCache) -> dict[str, float]:
    """By kind of state, over all layers."""
    worst = {"recurrent": 0.0, "convolution": 0.0, "keys": 0.0, "values": 0.0}

    def compare(kind: str, a: Tensor, b: Tensor) -> None:
        assert a.shape == b.shape
        worst[kind] = max(worst[kind], float((a - b).abs().max()))

    for a, b in zip(one.layers, other.layers, strict=True):
        if isinstance(a, LinearAttentionLayer):
            compare("recurrent", a.recurrent_states[0], b.recurrent_states[0])
            compare("convolution", a.conv_states[0], b.conv_states[0])
        else:
            compare("keys", a.keys, b.keys)
            compare("values", a.values, b.values)
    return worst


def is_as_fresh(cache: DynamicCache, fresh: DynamicCache, tolerance: float = TOLERANCE) -> bool:
    return all(difference <= tolerance for difference in largest_difference(cache, fresh).values())


@pytest.mark.parametrize("num_accepted", range(1, BLOCK + 1))
def test_after_commit_every_state_equals_a_fresh_run(target: Target, num_accepted: int) -> None:
    prompt, block = ids(37, seed=1), ids(BLOCK, seed=2)
    cache = RollbackCache(target, TAPS)
    cache.prefill(prompt)
    cache.verify(block)
    cache.commit(num_accepted)
    assert is_as_fresh(cache._cache, fresh_cache(target, prompt + block[:num_accepted]))
    assert cache.num_tokens == len(prompt) + num_accepted


@pytest.mark.parametrize("num_accepted", range(1, BLOCK + 1))
def test_after_commit_the_next_block_equals_a_fresh_run(target: Target, num_accepted: int) -> None:
    prompt, block, following = ids(37, seed=3), ids(BLOCK, seed=4), ids(5, seed=5)
    cache = RollbackCache(target, TAPS)
    cache.prefill(prompt)
    cache.verify(block)
    cache.commit(num_accepted)
    seen = cache.verify(following)
    tokens = torch.tensor([prompt + block[:num_accepted] + following])
    with torch.no_grad():
        output = target.model(input_ids=tokens, use_cache=False, output_hidden_states=True)
    assert torch.allclose(seen.logits_KV, output.logits[0, -5:], rtol=0, atol=LOOSE_TOLERANCE)
    assert torch.allclose(seen.taps_KF[:, :64], output.hidden_states[2][0, -5:], rtol=0, atol=LOOSE_TOLERANCE)


def test_many_blocks_leave_no_drift(target: Target) -> None:
    tokens = ids(3, seed=6)
    cache = RollbackCache(target, TAPS)
    cache.prefill(tokens)
    for step, num_accepted in enumerate((1, 8, 3, 1, 1, 5, 2, 7, 4, 6) * 3):
        block = ids(BLOCK, seed=100 + step)
        cache.verify(block)
        cache.commit(num_accepted)
        tokens = tokens + block[:num_accepted]
    assert is_as_fresh(cache._cache, fresh_cache(target, tokens), LOOSE_TOLERANCE)


def test_a_block_of_one_token_can_be_committed(target: Target) -> None:
    prompt = ids(9, seed=7)
    cache = RollbackCache(target, TAPS)
    cache.prefill(prompt)
    cache.verify([11])
    cache.commit(1)
    assert is_as_fresh(cache._cache, fresh_cache(target, [*prompt, 11]))


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 4, 5])
def test_a_prompt_shorter_than_the_convolution_can_be_rolled_back_to(target: Target, num_tokens: int) -> None:
    prompt, block = ids(num_tokens, seed=8), ids(BLOCK, seed=9)
    cache = RollbackCache(target, TAPS)
    cache.prefill(prompt)
    cache.verify(block)
    cache.commit(3)
    cache.verify(block)
    cache.commit(8)
    assert is_as_fresh(cache._cache, fresh_cache(target, prompt + block[:3] + block), LOOSE_TOLERANCE)


def crop_alone(target: Target) -> bool:
    """The check above, with nothing but transformers' own crop."""
    prompt, block = ids(37, seed=1), ids(BLOCK, seed=2)
    cache = DynamicCache(config=target.model.config)
    cache.activate_past_recording()
    with torch.no_grad():
        target.model(input_ids=torch.tensor([prompt]), past_key_values=cache, use_cache=True)
        cache.crop(0)
        target.model(input_ids=torch.tensor([block]), past_key_values=cache, use_cache=True)
    cache.crop(-(BLOCK - 2))
    return is_as_fresh(cache, fresh_cache(target, prompt + block[:2]))


def test_crop_alone_fails_this_check_on_the_hybrid(hybrid_target: Target) -> None:
    assert not crop_alone(hybrid_target)


def test_crop_alone_passes_this_check_without_recurrent_layers(attention_target: Target) -> None:
    assert crop_alone(attention_target)


def test_the_rules_are_put_back_after_a_block(hybrid_target: Target) -> None:
    import transformers.models.qwen3_5.modeling_qwen3_5 as modeling

    before: list[Callable[..., object]] = [
        modeling.torch_chunk_gated_delta_rule,
        modeling.torch_recurrent_gated_delta_rule,
    ]
    cache = RollbackCache(hybrid_target, TAPS)
    cache.prefill([5, 6, 7])
    cache.verify([8, 9])
    assert [modeling.torch_chunk_gated_delta_rule, modeling.torch_recurrent_gated_delta_rule] == before


def test_prefill_gives_the_taps_of_every_prompt_token_and_the_last_logits(target: Target) -> None:
    prompt = ids(21, seed=10)
    seen = RollbackCache(target, TAPS).prefill(prompt)
    with torch.no_grad():
        output = target.model(input_ids=torch.tensor([prompt]), use_cache=False)
    assert seen.taps_KF.shape == (21, 2 * 64)
    assert torch.allclose(seen.logits_KV, output.logits[0, -1:], rtol=0, atol=TOLERANCE)


def test_a_target_with_other_recurrent_layers_is_refused(hybrid_target: Target) -> None:
    config = Mamba2Config(
        vocab_size=300, hidden_size=32, num_hidden_layers=2, num_heads=8, head_dim=8, state_size=8, n_groups=1
    )
    mamba = Target(Mamba2ForCausalLM(config), hybrid_target.shape)
    with pytest.raises(BadInput, match="can take back tokens only from attention and Gated DeltaNet"):
        RollbackCache(mamba, TAPS)
