"""Token for token what the target does alone, on both kinds of target, whatever drafts."""

from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from dflashctl_remote.drafter.model import Drafter
from dflashctl_remote.drafter.session import DraftSession
from dflashctl_remote.evaluate.decode import plain_greedy
from dflashctl_remote.serve.generation import DraftPlan, Generation, Step
from dflashctl_remote.serve.sampling import Sampler, SamplingParams, probabilities
from dflashctl_remote.spec.drafter import DrafterSpec, resolve_drafter
from dflashctl_remote.target.load import Target

PROMPT = tuple(range(10, 31))
TAPS = (0, 2)
K = 3
GREEDY = SamplingParams(temperature=0)


class Wrong:
    """Always drafts token 77, and believes in it."""

    def extend(self, taps_TF: Tensor) -> None:
        assert taps_TF.shape[1] == len(TAPS) * 64

    def propose(self, anchor_token: int, block_size: int | None = None) -> list[int]:
        assert block_size is not None
        return [77] * (block_size - 1)

    def propose_logits(self, anchor_token: int, block_size: int | None = None) -> Tensor:
        assert block_size is not None
        logits = torch.zeros(block_size - 1, 300)
        logits[:, 77] = 5.0
        return logits


class Oracle(Wrong):
    """Knows what comes, but for every fifth token."""

    def __init__(self, answer: Sequence[int]) -> None:
        self._answer = list(answer)
        self._num_seen = -len(PROMPT)

    def extend(self, taps_TF: Tensor) -> None:
        self._num_seen += taps_TF.shape[0]

    def propose(self, anchor_token: int, block_size: int | None = None) -> list[int]:
        assert block_size is not None
        at = range(self._num_seen + 1, self._num_seen + block_size)
        return [self._answer[i] if i % 5 else 299 for i in at]


def session_of(target: Target) -> DraftSession:
    spec = DrafterSpec(num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16, block_size=K + 1, tap_layers=TAPS)
    drafter = Drafter(resolve_drafter(spec, target.shape)).eval()
    drafter.init_weights(seed=3)
    return DraftSession(drafter, target)


def generation(target: Target, drafting: object, params: SamplingParams, max_length_tokens: int = 1024) -> Generation:
    plan = DraftPlan(drafting, TAPS, K) if drafting else None  # type: ignore[arg-type]
    return Generation(target, plan, PROMPT, Sampler(params), max_length_tokens=max_length_tokens)


def tokens_of(generation: Generation, num_tokens: int) -> tuple[int, ...]:
    tokens: list[int] = []
    while len(tokens) < num_tokens:
        tokens += generation.step().tokens
    return tuple(tokens[:num_tokens])


def test_greedy_answers_are_plain_greedy_token_for_token(target: Target) -> None:
    plain = plain_greedy(target, PROMPT, max_new_tokens=60, eos_token_ids=frozenset())
    for drafting in (None, Wrong(), Oracle([*plain, *[0] * K]), session_of(target)):
        assert tokens_of(generation(target, drafting, GREEDY), 60) == plain


def test_sampled_answers_have_the_targets_law_though_the_drafter_is_wrong(hybrid_target: Target) -> None:
    """The second and third token after a fixed first one, of the three likeliest each: nine cases."""
    params = SamplingParams(top_k=3, temperature=2.0)
    seen: Counter[tuple[int, ...]] = Counter()
    num_answers = 200
    for seed in range(num_answers):
        drawn = SamplingParams(top_k=3, temperature=2.0, seed=seed)
        seen[tokens_of(generation(hybrid_target, Wrong(), drawn), 2)] += 1
    law = law_of_two(hybrid_target, params)
    assert set(seen) <= set(law)
    chi_square = sum((seen[pair] - num_answers * p) ** 2 / (num_answers * p) for pair, p in law.items())
    assert chi_square < 26.1  # 8 degrees of freedom, once in a thousand seeds


def law_of_two(target: Target, params: SamplingParams) -> dict[tuple[int, int], float]:
    def next_law(ids: Sequence[int]) -> Tensor:
        with torch.no_grad():
            logits_TV = target.model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]
        return probabilities(logits_TV[-1:], params)[0]

    first_V = next_law(PROMPT)
    law = {}
    for first in first_V.nonzero().flatten().tolist():
        second_V = next_law([*PROMPT, first])
        for second in second_V.nonzero().flatten().tolist():
            law[first, second] = float(first_V[first] * second_V[second])
    return law


def test_plain_and_wrongly_drafted_answers_of_one_seed_repeat_themselves(hybrid_target: Target) -> None:
    params = SamplingParams(seed=8)
    for make in (lambda: None, Wrong, lambda: session_of(hybrid_target)):
        assert tokens_of(generation(hybrid_target, make(), params), 20) == tokens_of(
            generation(hybrid_target, make(), params), 20
        )


def test_the_prompt_is_no_verify_step_and_every_other_drafts_a_whole_block(hybrid_target: Target) -> None:
    answer = generation(hybrid_target, Wrong(), GREEDY)
    first, second = answer.step(), answer.step()
    assert first == Step(first.tokens)
    assert (second.num_drafts, len(second.tokens)) == (K, second.num_accepted + 1)


def test_plain_steps_count_no_drafts(hybrid_target: Target) -> None:
    answer = generation(hybrid_target, None, GREEDY)
    assert [(step.num_drafts, len(step.tokens)) for step in (answer.step(), answer.step())] == [(0, 1), (0, 1)]


@pytest.mark.parametrize("max_new", [2, 3, 5])
def test_no_block_reaches_beyond_the_context(attention_target: Target, max_new: int) -> None:
    plain = plain_greedy(attention_target, PROMPT, max_new_tokens=max_new, eos_token_ids=frozenset())
    answer = generation(attention_target, Wrong(), GREEDY, max_length_tokens=len(PROMPT) + max_new)
    tokens = list(answer.step().tokens)
    while len(tokens) < max_new:
        step = answer.step()
        # The anchor stands at the place of the newest token, the drafts after it.
        assert step.num_drafts == min(K, max_new - len(tokens))
        tokens += step.tokens
    assert tuple(tokens) == plain
