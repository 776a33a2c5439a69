from collections.abc import Collection

import torch

from dflashctl_remote.evaluate.decode import plain_greedy
from dflashctl_remote.target.batch import answer_batch, greedy_batch
from dflashctl_remote.target.load import Target

LENGTHS = (1, 2, 3, 4, 5, 23, 40)


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(5, 300, (length,), generator=generator).tolist() for length in LENGTHS]


def alone(target: Target, eos_token_ids: Collection[int]) -> list[tuple[int, ...]]:
    return [plain_greedy(target, prompt, max_new_tokens=30, eos_token_ids=eos_token_ids) for prompt in prompts()]


def test_a_batch_of_any_lengths_answers_as_each_prompt_alone(target: Target) -> None:
    assert greedy_batch(target, prompts(), max_new_tokens=30, eos_token_ids=()) == alone(target, ())


def test_answers_that_stop_early_leave_the_others_alone(target: Target) -> None:
    # stop tokens taken from the answers themselves, so that they end at different places
    stops = {answer[at] for answer, at in zip(alone(target, ()), (2, 9, 4, 20, 6, 13), strict=False)}
    expected = alone(target, stops)
    assert len({len(answer) for answer in expected}) > 2
    assert greedy_batch(target, prompts(), max_new_tokens=30, eos_token_ids=stops) == expected


def test_no_more_than_max_new_tokens_are_made(target: Target) -> None:
    assert {len(a) for a in greedy_batch(target, prompts(), max_new_tokens=1, eos_token_ids=())} == {1}


def test_what_is_chosen_is_what_is_answered(target: Target) -> None:
    """The second best token each time, with rows that end early taken out in between."""

    def second(logits_BV: torch.Tensor) -> torch.Tensor:
        return logits_BV.topk(2, dim=-1).indices[:, 1]

    def answers(batch: list[list[int]]) -> list[tuple[int, ...]]:
        return answer_batch(target, batch, max_new_tokens=12, eos_token_ids=range(0, 300, 9), choose=second)

    together = answers(prompts())
    assert together == [answers([prompt])[0] for prompt in prompts()]
    assert together != greedy_batch(target, prompts(), max_new_tokens=12, eos_token_ids=range(0, 300, 9))
