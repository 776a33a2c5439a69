import json
from typing import Any

import pytest

from dflashctl_remote.serve.openai import ApiError, ChatRequest, CompletionRequest, parse_request

USER = {"role": "user", "content": "hi"}


def chat(**fields: Any) -> ChatRequest:
    return parse_request(ChatRequest, json.dumps({"model": "m", "messages": [USER], **fields}).encode())


def refused(**fields: Any) -> tuple[str, str, str | None]:
    with pytest.raises(ApiError) as caught:
        chat(**fields)
    assert caught.value.status == 400
    error = caught.value.body["error"]
    assert error["type"] == "invalid_request_error"
    return error["code"], error["message"], error["param"]  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"temperature": "warm"}, "temperature", "valid number"),
        ({"temperature": -1}, "temperature", "greater than or equal to 0"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"max_tokens": 2.5}, "max_tokens", "valid integer"),
        ({"seed": 2**63}, "seed", "less than"),
        ({"stop": ["a", ""]}, "stop", "must not be empty"),
        ({"stop": 5}, "stop", "valid list"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages", "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", "messages.0.content"),
        ({"stream_options": {"include_usage": True}}, None, "stream_options needs stream"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs", "tokenize is not the template's"),
    ],
)
def test_a_wrong_value_is_refused_by_field(fields: dict[str, Any], param: str | None, words: str) -> None:
    code, message, found = refused(**fields)
    assert (code, found) == ("invalid_value", param)
    assert words in message


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[1]", b"", b"[" * 100_000, b'{"temperature": NaN'])
def test_what_is_not_a_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_request(ChatRequest, body)
    assert caught.value.body["error"]["code"] == "invalid_json"


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ApiError, match="messages: is needed"):
        parse_request(ChatRequest, b'{"model": "m"}')


@pytest.mark.parametrize(
    "fields",
    [{"n": 2}, {"tools": [{}]}, {"response_format": {"type": "json_object"}}, {"logprobs": True}, {"min_p": 0.1}],
)
def test_a_field_that_would_change_the_answer_is_refused(fields: dict[str, Any]) -> None:
    code, message, param = refused(**fields)
    assert (code, param) == ("unsupported_field", next(iter(fields)))
    assert "does not do this" in message


@pytest.mark.parametrize(
    "fields", [{"n": 1}, {"tools": []}, {"response_format": {"type": "text"}}, {"logprobs": None}, {"user": "me"}]
)
def test_a_field_that_asks_for_nothing_passes(fields: dict[str, Any]) -> None:
    assert chat(**fields) == chat()


def test_a_field_that_nobody_knows_is_refused() -> None:
    assert refused(temprature=0)[0] == "unknown_field"


def test_text_parts_are_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    wanted = chat(messages=[{"role": "user", "content": parts}])
    assert wanted.messages[0].message().content == "ab"


def test_a_single_stop_string_is_a_list_of_one() -> None:
    assert (chat(stop="x").stop, chat(stop=None).stop) == (["x"], [])


def complete(prompt: Any) -> CompletionRequest:
    return parse_request(CompletionRequest, json.dumps({"model": "m", "prompt": prompt}).encode())


@pytest.mark.parametrize(("prompt", "found"), [("a", "a"), ([1, 2], [1, 2]), (["a"], "a"), ([[1, 2]], [1, 2])])
def test_a_prompt_is_a_text_or_ids_or_a_list_of_one(prompt: Any, found: Any) -> None:
    assert complete(prompt).prompt == found


@pytest.mark.parametrize("prompt", ["", [], [[]], [""], ["a", "b"], [[1], [2]], [1, "a"], 5, {}])
def test_other_prompts_are_refused(prompt: Any) -> None:
    with pytest.raises(ApiError, match=r"^prompt") as caught:
        complete(prompt)
    assert caught.value.body["error"]["param"] == "prompt"
