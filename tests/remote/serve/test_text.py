from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflashctl_remote.data.chat import load_tokenizer
from dflashctl_remote.serve.text import AnswerText

DEMO_TARGET = Path(__file__).parents[3] / "dflashctl" / "assets" / "demo_target"
LETTERS = dict(enumerate(["a", "b", "STO", "P", "ST", "OP now", "xS", ""]))


def spell(ids: list[int]) -> str:
    return "".join(LETTERS[i] for i in ids)


def shown(tokens: Sequence[int], stop: Sequence[str], decode: Callable[[list[int]], str] = spell) -> list[str]:
    """What is taken after every token, and last of all."""
    text = AnswerText(decode, stop)
    parts = []
    for token in tokens:
        if text.push(token):
            break
        parts.append(text.take())
    return [*parts, text.take(is_last=True)]


def test_text_without_stop_strings_is_shown_at_once() -> None:
    assert shown([0, 1, 0], []) == ["a", "b", "a", ""]


def test_a_stop_string_over_two_tokens_is_never_shown_in_part() -> None:
    assert shown([0, 2, 3, 1], ["STOP"]) == ["a", "", ""]


def test_a_stop_string_within_a_token_cuts_the_token() -> None:
    assert shown([0, 4, 5, 1], ["STOP"]) == ["a", "", ""]
    assert shown([6, 5], ["SO"]) == ["x", ""]


def test_what_was_held_back_is_shown_once_it_cannot_be_a_stop_string() -> None:
    assert shown([0, 2, 1], ["STOP"]) == ["a", "", "STOb", ""]


def test_a_beginning_held_back_is_shown_at_the_end() -> None:
    assert shown([0, 2], ["STOP"]) == ["a", "", "STO"]


def test_the_stop_string_that_comes_first_in_the_text_counts() -> None:
    assert shown([0, 4, 5], ["P n", "TO"]) == ["a", "S", ""]


def test_stop_strings_before_min_tokens_are_text() -> None:
    text = AnswerText(spell, ["STOP"])
    assert not text.push(2, may_stop=False)
    assert not text.push(3, may_stop=False)
    assert text.push(2) is False
    assert text.push(3) is True
    assert text.take(is_last=True) == "STOP"


@pytest.fixture(scope="module")
def tokenizer():  # type: ignore[no-untyped-def]
    return load_tokenizer(DEMO_TARGET)


@pytest.fixture(scope="module")
def decode(tokenizer) -> Callable[[list[int]], str]:  # type: ignore[no-untyped-def]
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_a_character_over_several_tokens_is_shown_whole(tokenizer, decode) -> None:  # type: ignore[no-untyped-def]
    ids = tokenizer("x = '\u2603\U0001f600'  # \u00e9", add_special_tokens=False)["input_ids"]
    parts = shown(ids, [], decode)
    assert "\ufffd" not in "".join(parts)
    assert "".join(parts) == "x = '\u2603\U0001f600'  # \u00e9"
    assert sum(map(bool, parts)) < len(ids)


def test_a_character_that_the_end_cuts_is_left_out(tokenizer, decode) -> None:  # type: ignore[no-untyped-def]
    ids = tokenizer("ab\U0001f600", add_special_tokens=False)["input_ids"]
    assert "".join(shown(ids[:-1], [], decode)) == "ab"


def test_a_stop_string_of_characters_over_several_tokens_is_found(tokenizer, decode) -> None:  # type: ignore[no-untyped-def]
    ids = tokenizer("ab\U0001f600cd", add_special_tokens=False)["input_ids"]
    assert "".join(shown(ids, ["\U0001f600c"], decode)) == "ab"


@settings(max_examples=60, deadline=None)
@given(ids=st.lists(st.integers(0, 4095), max_size=24))
def test_the_parts_are_the_text_of_all_tokens(decode, ids: list[int]) -> None:  # type: ignore[no-untyped-def]
    assert "".join(shown(ids, [], decode)) == decode(ids).rstrip("\ufffd")


@settings(max_examples=60, deadline=None)
@given(ids=st.lists(st.integers(0, 7), max_size=12), stop=st.sampled_from(["STOP", "PST", "aa", "ba", "OP n"]))
def test_the_text_ends_before_the_first_stop_string(ids: list[int], stop: str) -> None:
    assert "".join(shown(ids, [stop])) == spell(ids).split(stop)[0]
