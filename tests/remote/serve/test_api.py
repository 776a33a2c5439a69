"""Over HTTP on loopback, with the embedded target and a drafter that knows nothing."""

import http.client
import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest

from dflashctl_remote.evaluate.decode import plain_greedy
from dflashctl_remote.serve.loading import ServedModel

LONG = {"max_tokens": 1900, "ignore_eos": True}
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"


def token_ids(answer: httpx.Response) -> list[int]:
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["token_ids"]


def error_of(answer: httpx.Response) -> dict[str, Any]:
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def chunks_of(server: Any, path: str = "/v1/chat/completions", **fields: Any) -> list[dict[str, Any]]:
    body = server.chat_body(**fields)
    if path == "/v1/completions":
        body["prompt"] = body.pop("messages")[0]["content"]
    with server.client.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        data = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert data[-1] == "[DONE]"
    return [json.loads(line) for line in data[:-1]]


def hung_up_after_first_token(server: Any, **fields: Any) -> Any:
    """A stream that has begun: (response, its lines). Close the response to hang up."""
    request = server.client.build_request("POST", "/v1/chat/completions", json=server.chat_body(**fields, stream=True))
    answer = server.client.send(request, stream=True)
    lines = answer.iter_lines()
    next(lines)
    return answer, lines


def test_greedy_answers_are_the_targets_own(server: Any, plain_server: Any, model: ServedModel) -> None:
    for content in ("Write a function that adds.", "What is a list?"):
        answer = server.chat(content, max_tokens=40)
        prompt = answer.json()["prompt_token_ids"]
        plain = plain_greedy(model.target, prompt, max_new_tokens=40, eos_token_ids=model.eos_token_ids)
        assert tuple(token_ids(answer)) == plain
        assert tuple(token_ids(plain_server.chat(content, max_tokens=40))) == plain


def test_a_whole_answer_has_openais_shape(server: Any) -> None:
    answer = server.chat().json()
    assert (answer["object"], answer["model"]) == ("chat.completion", "demo")
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length"
    num_prompt_tokens = len(answer["prompt_token_ids"])
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (num_prompt_tokens, 16)
    assert usage["total_tokens"] == num_prompt_tokens + 16
    details, seen = usage["completion_tokens_details"], answer["metrics"]["speculative_decoding"]
    assert details["accepted_prediction_tokens"] == seen["num_accepted_draft_tokens"]
    assert details["rejected_prediction_tokens"] == 3 * seen["num_spec_steps"] - seen["num_accepted_draft_tokens"]


def test_a_plain_answer_has_no_figures_of_speculation(plain_server: Any) -> None:
    answer = plain_server.chat().json()
    assert "metrics" not in answer
    assert "spec_decode" not in plain_server.client.get("/metrics").text


def test_token_ids_come_only_where_they_are_asked_for(server: Any) -> None:
    answer = server.chat(return_token_ids=False).json()
    assert "prompt_token_ids" not in answer
    assert "token_ids" not in answer["choices"][0]


def test_chunks_add_up_to_the_whole_answer(server: Any) -> None:
    whole = server.chat().json()
    first, *chunks = chunks_of(server, stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["prompt_token_ids"] == whole["prompt_token_ids"]
    *chunks, last = chunks
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["delta"]["content"] for choice in choices) == whole["choices"][0]["message"]["content"]
    assert [token for choice in choices for token in choice["token_ids"]] == whole["choices"][0]["token_ids"]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(chunks) - 1) + ["length"]
    num_tokens = 0
    for chunk in chunks:
        num_tokens += len(chunk["choices"][0]["token_ids"])
        assert chunk["usage"]["completion_tokens"] == num_tokens
    assert (last["choices"], last["usage"]) == ([], whole["usage"])


def test_usage_comes_only_where_it_is_asked_for(server: Any) -> None:
    assert all("usage" not in chunk for chunk in chunks_of(server, max_tokens=3))


def test_completions_take_text_and_ids_alike(server: Any) -> None:
    text = server.complete(prompt="def add(a, b):", return_token_ids=True).json()["choices"][0]
    assert len(text["token_ids"]) == 16
    ids = server.complete(prompt=text["prompt_token_ids"], return_token_ids=True).json()["choices"][0]
    assert ids == text
    first, *chunks = chunks_of(server, "/v1/completions", content="def add(a, b):", max_tokens=16)
    assert first["choices"][0]["prompt_token_ids"] == text["prompt_token_ids"]
    assert "".join(chunk["choices"][0]["text"] for chunk in (first, *chunks)) == text["text"]


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_stop_string_ends_the_same_answer_at_the_same_token_everywhere(
    server: Any, plain_server: Any, model: ServedModel, at: int
) -> None:
    """The string begins in the middle of token `at` and ends with the next one, wherever a verify step ends."""
    whole = server.chat().json()["choices"][0]
    tokens = whole["token_ids"]
    text_to = [len(model.chat.tokenizer.decode(tokens[:n])) for n in range(len(tokens) + 1)]  # type: ignore[union-attr]
    text = whole["message"]["content"]
    stop = text[text_to[at + 1] - 1 : text_to[at + 2]]
    end = text.index(stop)
    plain = plain_server.chat(stop=stop).json()["choices"][0]
    assert (plain["message"]["content"], plain["finish_reason"]) == (text[:end], "stop")
    assert server.chat(stop=stop).json()["choices"][0] == plain
    chunks = [chunk["choices"][0] for chunk in chunks_of(server, stop=[stop, "never"])[1:]]
    assert "".join(chunk["delta"]["content"] for chunk in chunks) == text[:end]
    assert [token for chunk in chunks for token in chunk["token_ids"]] == plain["token_ids"]


def test_a_stop_token_ends_the_answer(server: Any) -> None:
    tokens = token_ids(server.chat())
    stop = tokens[5]
    answer = server.chat(stop_token_ids=[stop])
    assert token_ids(answer) == tokens[: tokens.index(stop) + 1]
    assert answer.json()["choices"][0]["finish_reason"] == "stop"


def test_min_tokens_and_ignore_eos_hold_the_end_off(server: Any, model: ServedModel) -> None:
    stop = token_ids(server.chat())[0]
    later = token_ids(server.chat(stop_token_ids=[stop], min_tokens=6))
    assert stop not in later[:6]
    assert len(later) >= 6
    (eos,) = model.eos_token_ids
    body = {"prompt": [eos] * 3, "max_tokens": 8, "return_token_ids": True, "stop_token_ids": [eos]}
    assert len(server.complete(**body, ignore_eos=True, min_tokens=8).json()["choices"][0]["token_ids"]) == 8


def test_max_completion_tokens_is_the_newer_name(server: Any) -> None:
    assert len(token_ids(server.chat(max_tokens=9, max_completion_tokens=3))) == 3


def test_a_seed_gives_the_same_answer_in_any_company(server: Any) -> None:
    fields = {"temperature": 0.8, "top_p": 0.9, "top_k": 40}
    alone = token_ids(server.chat(seed=7, max_tokens=12, **fields))
    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(server.chat, seed=seed, temperature=1.0) for seed in (1, 2)]
        in_company = token_ids(server.chat(seed=7, max_tokens=12, **fields))
        assert all(other.result().status_code == 200 for other in others)
    assert in_company == alone
    assert token_ids(server.chat(seed=8, max_tokens=12, **fields)) != alone


def test_template_arguments_reach_the_template(server: Any, model: ServedModel, start: Any) -> None:
    tokenizer = model.chat.tokenizer  # type: ignore[union-attr]
    template = tokenizer.chat_template
    try:
        tokenizer.chat_template = "{{ 'def' if is_code else 'class' }}"
        code = server.chat(chat_template_kwargs={"is_code": True}).json()["prompt_token_ids"]
        assert tokenizer.decode(code) == "def"
        assert tokenizer.decode(server.chat().json()["prompt_token_ids"]) == "class"
    finally:
        tokenizer.chat_template = template


def test_counters_move_by_what_the_answers_say(server: Any) -> None:
    names = ("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_draft_tokens_total")
    before = [server.metric(name) for name in names]
    tokens_before = server.metric("vllm:generation_tokens_total")
    seen = server.chat().json()["metrics"]["speculative_decoding"]
    moved = [server.metric(name) - old for name, old in zip(names, before, strict=True)]
    assert moved == [seen["num_spec_steps"], seen["num_draft_tokens"]]
    assert server.metric("vllm:generation_tokens_total") - tokens_before == 16
    assert server.metric("vllm:spec_decode_num_accepted_tokens_per_pos_total", position="2") >= 0
    assert server.metric("vllm:request_success_total", finished_reason="length", model_name="demo") >= 1


def test_an_unknown_model_is_404_with_what_is_served(server: Any) -> None:
    answer = server.chat(model="gpt-5")
    error = error_of(answer)
    assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "'demo' is" in error["message"]


def test_a_context_too_long_is_400_with_both_numbers(server: Any) -> None:
    answer = server.chat(max_tokens=2048)
    error = error_of(answer)
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "2066 tokens" in error["message"]
    assert "takes 2048" in error["message"]
    assert error_of(server.complete(prompt=[5] * 2048))["code"] == "context_length_exceeded"


def test_a_body_that_no_prompt_could_need_is_not_read_to_its_end(server: Any) -> None:
    answer = server.complete(prompt="x" * 400_000)
    assert (answer.status_code, error_of(answer)["code"]) == (400, "context_length_exceeded")
    assert "more than 196,608 bytes" in error_of(answer)["message"]


@pytest.mark.parametrize("name", ["messages", "self"])
def test_what_the_template_is_called_with_is_not_the_clients_to_set(server: Any, name: str) -> None:
    answer = server.chat(chat_template_kwargs={name: 3})
    assert answer.status_code == 400
    assert name in error_of(answer)["message"]


def test_an_answer_may_fill_the_context_to_its_end(server: Any) -> None:
    answer = server.complete(prompt=[1178] * 2040, max_tokens=8, ignore_eos=True).json()
    assert answer["usage"]["total_tokens"] == 2048
    open_end = server.chat(max_tokens=None, stop_token_ids=[token_ids(server.chat())[0]])
    assert len(token_ids(open_end)) == 1


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (b"{", None, "not JSON"),
        (b'{"model": "demo"}', "messages", "is needed"),
        (b'{"model": "demo", "messages": [], "n": 3}', "n", "does not do this"),
        (b'{"model": "demo", "messages": [{"role": "user", "content": "\\ud800"}]}', None, "not JSON"),
    ],
)
def test_a_malformed_request_is_400_naming_the_field(server: Any, body: bytes, param: str | None, words: str) -> None:
    answer = server.client.post("/v1/chat/completions", content=body)
    assert answer.status_code == 400
    assert error_of(answer)["param"] == param
    assert words in error_of(answer)["message"]


def test_ids_outside_the_vocabulary_are_refused(server: Any) -> None:
    assert "token 4096 is outside" in error_of(server.complete(prompt=[4096]))["message"]
    assert error_of(server.complete(prompt="a", stop_token_ids=[-1]))["param"] == "stop_token_ids"


def test_an_unknown_path_is_404_in_the_same_shape(server: Any) -> None:
    answer = server.client.get("/v2/nothing")
    assert (answer.status_code, error_of(answer)["message"]) == (404, "GET /v2/nothing: Not Found")
    assert server.client.get("/v1/completions").status_code == 405


def test_the_server_says_what_it_is(server: Any) -> None:
    (entry,) = server.client.get("/v1/models").json()["data"]
    assert (entry["id"], entry["max_model_len"]) == ("demo", 2048)
    about = server.client.get("/version").json()
    assert (about["engine"], about["num_draft_tokens"], about["block_size"]) == ("reference", 3, 4)
    assert "for correctness" in about["about"]


def test_a_client_that_hangs_up_in_mid_stream_frees_its_slot_and_another_goes_on(server: Any) -> None:
    staying, lines = hung_up_after_first_token(server, **LONG)
    leaving, _ = hung_up_after_first_token(server, **LONG)
    assert server.metric(RUNNING) == 2
    leaving.close()
    server.wait_for_metric(RUNNING, 1)
    assert any(json.loads(line[6:])["choices"][0].get("token_ids") for line in lines if line)
    staying.close()
    server.wait_for_metric(RUNNING, 0)


def test_a_client_that_hangs_up_before_its_whole_answer_frees_its_slot(server: Any) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("POST", "/v1/chat/completions", json.dumps(server.chat_body(**LONG)))
    server.wait_for_metric(RUNNING, 1)
    connection.close()
    server.wait_for_metric(RUNNING, 0)


def test_who_waits_may_hang_up_and_one_too_many_is_refused(model: ServedModel, start: Callable[..., Any]) -> None:
    with start(model, max_running=1, max_waiting=1) as server:
        staying, _ = hung_up_after_first_token(server, **LONG)
        waiting = http.client.HTTPConnection("127.0.0.1", server.port)
        waiting.request("POST", "/v1/chat/completions", json.dumps(server.chat_body(stream=True)))
        server.wait_for_metric(WAITING, 1)
        refused = server.chat()
        assert (refused.status_code, error_of(refused)["code"]) == (503, "queue_full")
        assert refused.headers["retry-after"] == "1"
        waiting.close()
        server.wait_for_metric(WAITING, 0)
        assert server.metric(RUNNING) == 1
        staying.close()


def test_a_request_that_cannot_be_decoded_is_500_and_the_server_goes_on(
    model: ServedModel, start: Callable[..., Any]
) -> None:
    def decode(ids: list[int]) -> str:
        raise RuntimeError("no such text")

    with start(replace(model, decode=decode)) as server:
        answer = server.chat()
        assert (answer.status_code, error_of(answer)["code"]) == (500, "decoding_failed")
        assert "RuntimeError: no such text" in error_of(answer)["message"]
        assert server.chat(stream=True).status_code == 500
        assert server.client.get("/health").status_code == 200
        assert server.metric(RUNNING) == 0


def test_a_failure_in_mid_stream_is_an_error_event_and_no_end(model: ServedModel, start: Callable[..., Any]) -> None:
    def decode(ids: list[int]) -> str:
        if len(ids) > 1:
            raise RuntimeError("too much text")
        return "a"

    with start(replace(model, decode=decode)) as server:
        with server.client.stream("POST", "/v1/chat/completions", json=server.chat_body(stream=True)) as answer:
            data = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
        assert json.loads(data[-1])["error"]["code"] == "decoding_failed"
        assert "[DONE]" not in data


def test_health_is_503_until_the_weights_are_there_and_after_the_thread_has_ended(
    model: ServedModel, start: Callable[..., Any]
) -> None:
    with start(model) as server:
        backend, server.service.backend = server.service.backend, None
        for answer in (server.client.get("/health"), server.chat(), server.client.get("/v1/models")):
            assert (answer.status_code, error_of(answer)["code"]) == (503, "loading")
        server.service.backend = backend
        assert server.client.get("/health").status_code == 200
        backend.scheduler.shut_down()
        assert error_of(server.client.get("/health"))["code"] == "dead"


def test_a_client_that_hangs_up_in_its_own_request_harms_nobody(server: Any) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as half:
        half.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{")
    assert server.chat(max_tokens=1).status_code == 200
