from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from dflashctl_remote.evaluate.decode import num_leading_matches, plain_greedy, speculative_greedy
from dflashctl_remote.target.load import Target

BLOCK = 8
TAPS = (1, 3)
NO_STOP = frozenset[int]()


class Oracle:
    """Knows the answer, and drafts it with an error after every `num_right` tokens."""

    def __init__(self, answer: Sequence[int], num_right: int = BLOCK) -> None:
        self._answer = list(answer)
        self._num_right = num_right
        self._calls = 0
        self.num_context = 0

    def reset(self) -> None:
        self.num_context = 0

    def extend(self, taps_TF: Tensor) -> None:
        assert taps_TF.shape[1] == len(TAPS) * 64
        self.num_context += taps_TF.shape[0]

    def propose(self, anchor_token: int, block_size: int | None = None) -> list[int]:
        assert block_size is not None
        position = self.num_context - len(PROMPT)
        assert self._answer[position] == anchor_token
        drafts = [*self._answer[position + 1 : position + block_size], *[0] * block_size][: block_size - 1]
        self._calls += 1
        num_right = (self._num_right + self._calls) % BLOCK
        return drafts[:num_right] + [(draft + 1) % 300 for draft in drafts[num_right:]]


class Stubborn(Oracle):
    """Always drafts the same token."""

    def propose(self, anchor_token: int, block_size: int | None = None) -> list[int]:
        assert block_size is not None
        return [77] * (block_size - 1)


PROMPT = tuple(range(10, 31))


def generated(target: Target, num_tokens: int) -> tuple[int, ...]:
    """By transformers' own generate, which knows none of this."""
    ids_BT = torch.tensor([PROMPT])
    out = target.model.generate(ids_BT, max_new_tokens=num_tokens, do_sample=False, eos_token_id=None)
    return tuple(out[0, len(PROMPT) :].tolist())


def test_plain_greedy_is_what_generate_gives(target: Target) -> None:
    assert plain_greedy(target, PROMPT, max_new_tokens=60, eos_token_ids=NO_STOP) == generated(target, 60)


@pytest.mark.parametrize("num_right", range(BLOCK))
def test_speculative_output_is_plain_greedy_token_for_token(target: Target, num_right: int) -> None:
    plain = plain_greedy(target, PROMPT, max_new_tokens=70, eos_token_ids=NO_STOP)
    decoded = speculative_greedy(
        target,
        Oracle(plain, num_right),
        PROMPT,
        tap_layers=TAPS,
        block_size=BLOCK,
        max_new_tokens=70,
        eos_token_ids=NO_STOP,
    )
    assert decoded.tokens == plain
    assert sum(decoded.accepted_per_step) == 69
    assert decoded.drafts_per_step == tuple(step - 1 for step in decoded.accepted_per_step)


def test_useless_drafts_cost_a_step_a_token_and_change_nothing(target: Target) -> None:
    plain = plain_greedy(target, PROMPT, max_new_tokens=30, eos_token_ids=NO_STOP)
    decoded = speculative_greedy(
        target,
        Stubborn(()),
        PROMPT,
        tap_layers=TAPS,
        block_size=BLOCK,
        max_new_tokens=30,
        eos_token_ids=NO_STOP,
    )
    assert decoded.tokens == plain
    assert set(decoded.drafts_per_step) <= {0, 1}


class Perfect(Oracle):
    """Never wrong."""

    def propose(self, anchor_token: int, block_size: int | None = None) -> list[int]:
        assert block_size is not None
        position = self.num_context - len(PROMPT)
        drafts = self._answer[position + 1 : position + block_size]
        return [*drafts, *[0] * (block_size - 1 - len(drafts))]


def decode_perfectly(target: Target, num_tokens: int, eos_token_ids: frozenset[int] = NO_STOP):  # type: ignore[no-untyped-def]
    answer = plain_greedy(target, PROMPT, max_new_tokens=64, eos_token_ids=NO_STOP)
    return answer, speculative_greedy(
        target,
        Perfect(answer),
        PROMPT,
        tap_layers=TAPS,
        block_size=BLOCK,
        max_new_tokens=num_tokens,
        eos_token_ids=eos_token_ids,
    )


def test_perfect_drafts_emit_a_block_a_step_and_the_last_block_is_shortened(target: Target) -> None:
    answer, decoded = decode_perfectly(target, 20)
    assert decoded.tokens == answer[:20]
    assert decoded.accepted_per_step == (8, 8, 3)


def test_a_single_token_needs_no_verify_step(target: Target) -> None:
    answer, decoded = decode_perfectly(target, 1)
    assert decoded.tokens == answer[:1]
    assert decoded.accepted_per_step == ()


def test_a_block_shortened_to_the_anchor_is_verified_without_drafts(target: Target) -> None:
    _, decoded = decode_perfectly(target, 10)
    assert decoded.accepted_per_step == (8, 1)
    assert decoded.drafts_per_step == (7, 0)


def test_a_stop_token_among_accepted_drafts_ends_the_answer(hybrid_target: Target) -> None:
    answer, _ = decode_perfectly(hybrid_target, 2)
    # a token that first occurs inside the first block of drafts
    at = next(i for i in range(3, 8) if answer[i] not in answer[:i])
    _, decoded = decode_perfectly(hybrid_target, 64, frozenset({answer[at]}))
    assert decoded.tokens == answer[: at + 1]
    assert decoded.accepted_per_step == (at,)
    assert decoded.drafts_per_step == (at,)


def test_plain_greedy_ends_at_a_stop_token_too(hybrid_target: Target) -> None:
    answer, _ = decode_perfectly(hybrid_target, 2)
    stop = frozenset({answer[5]})
    end = answer.index(answer[5]) + 1
    assert plain_greedy(hybrid_target, PROMPT, max_new_tokens=64, eos_token_ids=stop) == answer[:end]


def test_a_stop_token_from_the_prefill_ends_at_once(target: Target) -> None:
    answer, _ = decode_perfectly(target, 2)
    _, decoded = decode_perfectly(target, 64, frozenset({answer[0]}))
    assert decoded.tokens == answer[:1]
    assert decoded.accepted_per_step == ()


def test_only_leading_matches_are_accepted() -> None:
    assert num_leading_matches([1, 2, 3], [1, 2, 3, 9]) == 3
    assert num_leading_matches([1, 5, 3], [1, 2, 3, 9]) == 1
    assert num_leading_matches([], [4]) == 0
    assert num_leading_matches([1, 2], [1]) == 1
