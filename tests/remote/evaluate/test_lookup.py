import numpy as np

from dflashctl_remote.evaluate.lookup import BigramTable, accepted_per_step, own_text_draft


def table(*documents: tuple[list[int], list[int]]) -> BigramTable:
    return BigramTable((np.array(ids), np.array(supervised, dtype=bool)) for ids, supervised in documents)


def test_own_text_copies_what_followed_the_latest_occurrence() -> None:
    known = [1, 2, 5, 6, 1, 2, 7, 8, 1, 2]
    assert own_text_draft(known, 3) == [7, 8, 1]


def test_own_text_runs_on_into_its_copy() -> None:
    assert own_text_draft([4, 5, 4, 5], 5) == [4, 5, 4, 5, 4]


def test_own_text_without_an_earlier_occurrence_drafts_nothing() -> None:
    assert own_text_draft([1, 2, 3, 4], 3) == []
    assert own_text_draft([1], 3) == []


def test_own_text_needs_an_occurrence_before_the_last_two_tokens_themselves() -> None:
    assert own_text_draft([3, 3], 2) == []
    assert own_text_draft([3, 3, 3], 2) == [3, 3]


def test_table_takes_the_most_frequent_successor() -> None:
    draft = table(([1, 2, 9, 1, 2, 8, 1, 2, 8], [1] * 9))
    assert draft([1, 2], 1) == [8]


def test_table_breaks_ties_by_the_smallest_id() -> None:
    draft = table(([1, 2, 9, 1, 2, 8], [1] * 6))
    assert draft([1, 2], 1) == [8]


def test_table_backs_off_to_one_token() -> None:
    draft = table(([1, 2, 9], [1] * 3))
    assert draft([7, 2], 1) == [9]


def test_table_counts_only_supervised_successors() -> None:
    # 1 2 -> 9 twice in prompts, -> 8 once in an answer
    draft = table(([1, 2, 9, 1, 2, 9, 1, 2, 8], [0, 0, 0, 0, 0, 0, 0, 0, 1]))
    assert draft([1, 2], 1) == [8]


def test_table_applies_itself_again_and_stops_where_it_knows_nothing() -> None:
    draft = table(([1, 2, 3, 4], [1] * 4))
    assert draft([1, 2], 5) == [3, 4]


def test_table_of_documents_too_short_for_a_pair() -> None:
    draft = table(([5], [1]), ([5, 6], [1, 1]))
    assert draft([5], 2) == [6]


def test_steps_by_hand() -> None:
    # prompt 1 2 3, answer 4 1 2 3 4 1 2 9: the prefill gives 4.
    # [..3 4] is new: bonus 1.  [4 1] is new: bonus 2.
    # [1 2] occurred: drafts 3 4 1, all right, bonus 2.  [1 2] again: drafts 3.. wrong, bonus 9.
    answer = [4, 1, 2, 3, 4, 1, 2, 9]
    assert accepted_per_step(own_text_draft, [1, 2, 3], answer, block_size=4) == [1, 1, 4, 1]


def test_steps_emit_all_but_the_first_token_and_no_more() -> None:
    for length in range(1, 12):
        steps = accepted_per_step(own_text_draft, [7, 7, 7], [7] * length, block_size=4)
        assert sum(steps) == length - 1


def test_a_looping_answer_is_drafted_for_free() -> None:
    assert accepted_per_step(own_text_draft, [7, 7, 7], [7] * 17, block_size=8) == [8, 8]
