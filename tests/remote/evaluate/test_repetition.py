from dflashctl_remote.evaluate.repetition import distinct_share, repeated_mask, repeated_share


def test_both_occurrences_of_a_repeated_ngram_are_marked() -> None:
    #                          a  b  c  x  a  b  c
    assert repeated_mask([1, 2, 3, 9, 1, 2, 3], ngram=3) == [True, True, True, False, True, True, True]


def test_a_repeat_one_token_too_short_is_not_marked() -> None:
    assert not any(repeated_mask([1, 2, 9, 1, 2, 8], ngram=3))


def test_overlapping_occurrences_count() -> None:
    assert repeated_mask([7] * 17) == [True] * 17
    assert repeated_mask([7] * 16) == [False] * 16


def test_an_ngram_shared_by_two_answers_is_no_repeat() -> None:
    assert repeated_share([list(range(20)), list(range(20))]) == 0.0


def test_repeated_share_is_over_all_tokens() -> None:
    assert repeated_share([[7] * 17, list(range(83))]) == 0.17


def test_answers_without_tokens_have_no_share() -> None:
    assert repeated_share([[]]) == 0.0
    assert distinct_share([[1, 2, 3]]) == 1.0


def test_distinct_share_by_hand() -> None:
    # 4-grams of 1 1 1 1 1 2: 1111 twice, 1112 once
    assert distinct_share([[1, 1, 1, 1, 1, 2]]) == 2 / 3


def test_distinct_share_is_pooled_over_answers() -> None:
    assert distinct_share([[1, 2, 3, 4], [1, 2, 3, 4]]) == 0.5
