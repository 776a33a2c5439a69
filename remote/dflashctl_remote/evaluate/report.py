"""From answers to the figures of a report. Pure: no model, no files.

Tau is pooled: tokens emitted by verify steps / verify steps, over all answers. The first token of an answer comes
from the prefill and counts on neither side.

Tau without repeats leaves out every verify step that emitted at least one token inside a repeated 16-gram of its
answer (evaluate/repetition.py). What is left drafted text that occurs once, and nothing else; a step across the edge
of a repeat goes too, which never flatters.
"""

from collections.abc import Iterable, Sequence

from dflashctl_remote.evaluate.answers import Answer
from dflashctl_remote.evaluate.repetition import distinct_share, repeated_mask, repeated_share
from dflashctl_remote.spec.evaluate import EvalReport, Tau
from dflashctl_remote.spec.parity import Parity


def make_report(
    answers: Sequence[Answer],
    *,
    checkpoint: str,
    step: int | None,
    target: str,
    block_size: int,
    taps: Sequence[int],
    device: str,
    dtype: str,
    parity: Parity | None = None,
) -> EvalReport:
    """All figures of a finished evaluation; the answers stand in the order of their prompts."""
    tokens = [answer.tokens for answer in answers]
    tables = [answer.table_per_step for answer in answers if answer.table_per_step is not None]
    checked = [answer.is_greedy_equal for answer in answers if answer.is_greedy_equal is not None]
    return EvalReport(
        checkpoint=checkpoint,
        step=step,
        target=target,
        block_size=block_size,
        taps=tuple(taps),
        num_prompts=len(answers),
        drafter=pooled_tau(answer.accepted_per_step for answer in answers),
        drafter_without_repeats=pooled_tau(
            steps_without_repeats(answer.tokens, answer.accepted_per_step) for answer in answers
        ),
        bigram_lookup=pooled_tau(answer.lookup_per_step for answer in answers),
        bigram_table=pooled_tau(tables) if tables else None,
        repeated_token_share=repeated_share(tokens),
        distinct_4gram_share=distinct_share(tokens),
        mean_answer_tokens=sum(len(t) for t in tokens) / len(tokens),
        acceptance_by_slot=acceptance_by_slot((answer.drafts_per_step for answer in answers), block_size),
        num_greedy_checked=len(checked),
        num_greedy_equal=sum(checked),
        parity=parity,
        wall_s=sum(answer.wall_s for answer in answers),
        device=device,
        dtype=dtype,
    )


def pooled_tau(steps_of_answers: Iterable[Sequence[int]]) -> Tau:
    """Of tokens emitted per verify step; without a single step tau is 0."""
    steps = [step for steps in steps_of_answers for step in steps]
    return Tau(tau=sum(steps) / len(steps) if steps else 0.0, num_tokens=sum(steps), num_verify_steps=len(steps))


def steps_without_repeats(tokens: Sequence[int], accepted_per_step: Sequence[int]) -> list[int]:
    """The steps of an answer that emitted no repeated token."""
    mask = repeated_mask(tokens)
    kept: list[int] = []
    position = 1
    for step in accepted_per_step:
        if not any(mask[position : position + step]):
            kept.append(step)
        position += step
    return kept


def acceptance_by_slot(drafts_of_answers: Iterable[Sequence[int]], block_size: int) -> tuple[float, ...]:
    """For slots 1..K-1 the share of all verify steps that accepted at least so many drafts.

    The last, shortened block of an answer counts as a step for every slot.
    """
    drafts = [num for steps in drafts_of_answers for num in steps]
    return tuple(sum(num >= slot for num in drafts) / len(drafts) if drafts else 0.0 for slot in range(1, block_size))
