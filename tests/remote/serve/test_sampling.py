"""The law of what is emitted is the target's own, whatever drafts: counted against the enumerated law, seeds fixed."""

import itertools
from collections import Counter

import pytest
import torch
from torch import Tensor

from dflashctl_remote.serve.sampling import Sampler, SamplingParams, probabilities

VOCAB = 4
TARGET_VV = torch.tensor([[1.0, 0.2, -0.5, 0.9], [0.1, 2.0, 0.3, -1.0], [0.0, 0.0, 0.0, 0.0], [-2.0, 0.7, 0.6, 0.5]])
"""Logits of the next token, by the token before it."""
DRAFTER_VV = torch.tensor([[-1.0, 1.5, 0.0, 0.0], [0.0, 0.0, 0.0, 3.0], [2.0, 0.0, -1.0, 0.0], [0.9, -1.0, 0.6, 0.5]])
"""Wrong on purpose."""
NUM_ANSWERS = 1500
NUM_TOKENS = 2
CHI_SQUARE_999 = {3: 16.3, 8: 26.1, 15: 37.7}
"""By degrees of freedom: passed by chance once in a thousand seeds."""


def decode(sampler: Sampler, drafting: str, num_drafts: int) -> tuple[int, ...]:
    """Two tokens after token 0: with one draft a step the second may be a bonus token, with two a draft."""
    tokens = [0]
    while len(tokens) <= NUM_TOKENS:
        drafts, laws_KV = draft(sampler, tokens[-1], drafting, num_drafts)
        logits_KV = TARGET_VV[[tokens[-1], *drafts]]
        verdict = sampler.verdict(logits_KV, drafts, laws_KV, num_before=len(tokens))
        tokens += [*drafts[: verdict.num_accepted], verdict.next_token]
    return tuple(tokens[1 : 1 + NUM_TOKENS])


def draft(sampler: Sampler, anchor: int, drafting: str, num_drafts: int) -> tuple[list[int], Tensor | None]:
    if drafting == "none":
        return [], None
    if drafting == "stubborn":
        return [3] * num_drafts, None
    # As a block drafter does: the slots know nothing of one another.
    return sampler.draw_drafts(DRAFTER_VV[[anchor, 2][:num_drafts]])


def law_of(params: SamplingParams) -> dict[tuple[int, ...], float]:
    laws_VV = probabilities(TARGET_VV, params)
    joint = {}
    for first, second in itertools.product(range(VOCAB), repeat=NUM_TOKENS):
        chance = float(laws_VV[0, first] * laws_VV[first, second])
        if chance > 0:
            joint[first, second] = chance
    return joint


@pytest.mark.parametrize("drafting", ["none", "stubborn", "drawn"])
@pytest.mark.parametrize(
    "cut", [{}, {"temperature": 0.6, "top_k": 2}, {"top_p": 0.7}, {"temperature": 1.5, "top_k": 3, "top_p": 0.9}]
)
def test_emitted_tokens_have_the_targets_law(drafting: str, cut: dict[str, float]) -> None:
    params = SamplingParams(seed=11, **cut)  # type: ignore[arg-type]
    sampler = Sampler(params)
    seen = Counter(decode(sampler, drafting, 1 + i % 2) for i in range(NUM_ANSWERS))
    law = law_of(params)
    assert set(seen) <= set(law)
    chi_square = sum((seen[pair] - NUM_ANSWERS * p) ** 2 / (NUM_ANSWERS * p) for pair, p in law.items())
    freedom = next(f for f in CHI_SQUARE_999 if f >= len(law) - 1)
    assert chi_square < CHI_SQUARE_999[freedom]


def test_a_drafter_that_is_right_is_always_believed() -> None:
    sampler = Sampler(SamplingParams(seed=3, temperature=0.8))
    for _ in range(50):
        drafts, laws_KV = sampler.draw_drafts(TARGET_VV[[0, 2]])
        assert sampler.verdict(TARGET_VV[[0, 2, 1]], drafts, laws_KV, num_before=1).num_accepted == 2


def test_a_draft_that_top_k_rules_out_is_never_kept() -> None:
    sampler = Sampler(SamplingParams(seed=3, top_k=2))
    for _ in range(50):
        verdict = sampler.verdict(TARGET_VV[[0, 2]], [2], None, num_before=1)
        assert (verdict.num_accepted, verdict.next_token in {0, 3}) == (0, True)


def test_top_k_keeps_exactly_k_among_equals() -> None:
    law = probabilities(torch.zeros(1, 5), SamplingParams(top_k=2))
    assert law.tolist() == [[0.5, 0.5, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize(("top_p", "kept"), [(0.45, [1]), (0.5, [1]), (0.51, [1, 3]), (0.8, [1, 3]), (0.81, [0, 1, 3])])
def test_top_p_keeps_the_fewest_that_reach_it(top_p: float, kept: list[int]) -> None:
    law = probabilities(torch.tensor([[0.15, 0.5, 0.05, 0.3]]).log(), SamplingParams(top_p=top_p))
    assert law[0].nonzero().flatten().tolist() == kept
    assert float(law.sum()) == pytest.approx(1)


def test_top_p_counts_what_top_k_left() -> None:
    """0.5 and 0.3 of 0.8 become 0.625 and 0.375: the first alone reaches 0.6, which it would not before."""
    logits = torch.tensor([[0.15, 0.5, 0.05, 0.3]]).log()
    assert probabilities(logits, SamplingParams(top_k=2, top_p=0.6)).tolist() == [[0.0, 1.0, 0.0, 0.0]]


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 5e-324])
def test_a_tiny_temperature_is_the_arg_max_and_no_nan(temperature: float) -> None:
    law = probabilities(torch.tensor([[90.0, 100.0, -80.0]]), SamplingParams(temperature=temperature))
    assert law.tolist() == [[0.0, 1.0, 0.0]]


def test_temperature_0_takes_leading_drafts_that_are_the_arg_max() -> None:
    sampler = Sampler(SamplingParams(temperature=0))
    verdict = sampler.verdict(TARGET_VV[[0, 0, 1]], [0, 3], None, num_before=1)
    assert (verdict.num_accepted, verdict.next_token) == (1, 0)
    verdict = sampler.verdict(TARGET_VV[[0, 0, 1]], [0, 0], None, num_before=1)
    assert (verdict.num_accepted, verdict.next_token) == (2, 1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_stop_tokens_are_out_of_the_question_before_min_tokens(temperature: float) -> None:
    params = SamplingParams(seed=1, temperature=temperature, min_tokens=3, stop_token_ids=(0, 3))
    sampler = Sampler(params)
    for _ in range(20):
        # Tokens 2, 3 and 4 of the answer; token 4 may be a stop.
        verdict = sampler.verdict(TARGET_VV[[0, 0, 0]], [1, 1], None, num_before=1)
        assert verdict.num_accepted == 2 or verdict.next_token in {1, 2}
    assert sampler.verdict(TARGET_VV[[0]], (), None, num_before=2).next_token in {1, 2}
    greedy = Sampler(SamplingParams(temperature=0, min_tokens=3, stop_token_ids=(0, 3)))
    assert greedy.verdict(TARGET_VV[[0]], (), None, num_before=3).next_token == 0


def test_the_same_seed_draws_the_same_and_no_seed_draws_anew() -> None:
    def drawn(seed: int | None) -> list[int]:
        sampler = Sampler(SamplingParams(seed=seed))
        return [sampler.first(TARGET_VV[2]) for _ in range(40)]

    assert drawn(5) == drawn(5)
    assert drawn(5) != drawn(6)
    assert drawn(None) != drawn(None)
