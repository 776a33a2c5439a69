from typing import Any

from dflashctl_remote.evaluate.answers import Answer
from dflashctl_remote.evaluate.report import acceptance_by_slot, make_report, pooled_tau, steps_without_repeats

LOOP = list(range(100, 116))
"""16 tokens: twice in an answer, all of them are repeated."""


def answer(name: str, **changes: Any) -> Answer:
    return Answer.model_validate(
        {
            "id": name,
            "category": None,
            "num_prompt_tokens": 3,
            "tokens": (1, 2, 3, 4, 5),
            "text": "",
            "accepted_per_step": (3, 1),
            "drafts_per_step": (2, 0),
            "lookup_per_step": (1, 1, 1, 1),
            "table_per_step": None,
            "repeated_share": 0.0,
            "is_greedy_equal": None,
            "wall_s": 0.5,
            **changes,
        }
    )


def test_tau_is_pooled_over_steps_and_not_a_mean_of_means() -> None:
    tau = pooled_tau([[4], [1, 1, 1]])
    assert (tau.tau, tau.num_tokens, tau.num_verify_steps) == (7 / 4, 7, 4)


def test_tau_without_a_step_is_zero() -> None:
    tau = pooled_tau([[], []])
    assert (tau.tau, tau.num_verify_steps) == (0.0, 0)


def test_steps_that_touch_a_repeat_are_left_out() -> None:
    # first token 1, then: [2 3] fresh, [4 + 3 of the loop] across its edge, the rest of both loops, [5 6] fresh
    tokens = [1, 2, 3, 4, *LOOP, *LOOP, 5, 6]
    steps = [2, 4, 13, 16, 2]
    assert sum(steps) == len(tokens) - 1
    assert steps_without_repeats(tokens, steps) == [2, 2]


def test_without_repeats_every_step_counts() -> None:
    assert steps_without_repeats(range(50), [7, 7, 35]) == [7, 7, 35]


def test_acceptance_by_slot_by_hand() -> None:
    # four steps with 3, 1, 0, 1 accepted drafts in blocks of 4
    assert acceptance_by_slot([[3, 1], [0, 1]], 4) == (0.75, 0.25, 0.25)


def test_report_by_hand() -> None:
    looping = [1, *LOOP, *LOOP, 2]
    report = make_report(
        [
            answer("a", is_greedy_equal=True),
            answer(
                "b",
                tokens=looping,
                accepted_per_step=(4,) * 8 + (1,),
                drafts_per_step=(3,) * 8 + (0,),
                lookup_per_step=(1,) * 18 + (4, 4, 4, 3),
                is_greedy_equal=False,
            ),
        ],
        checkpoint="c",
        step=7,
        target="t",
        block_size=4,
        taps=(1, 2),
        device="cpu",
        dtype="float32",
    )
    assert (report.drafter.num_tokens, report.drafter.num_verify_steps) == (4 + 33, 2 + 9)
    assert report.drafter.tau == 37 / 11
    # of the looping answer only the last step, which emitted the token after both loops
    assert (report.drafter_without_repeats.num_tokens, report.drafter_without_repeats.num_verify_steps) == (5, 3)
    assert report.bigram_lookup.tau == 37 / 26
    assert report.bigram_table is None
    assert report.repeated_token_share == 32 / 39
    assert report.mean_answer_tokens == 19.5
    assert report.acceptance_by_slot == (9 / 11, 9 / 11, 8 / 11)
    assert (report.num_greedy_checked, report.num_greedy_equal) == (2, 1)
    assert report.wall_s == 1.0
    assert report.taps == (1, 2)
