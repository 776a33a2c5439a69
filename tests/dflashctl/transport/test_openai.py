import asyncio
import itertools
import threading

import pytest

from dflashctl.transport.openai import OpenAiClient

BODY = {
    "model": "m",
    "messages": [{"role": "user", "content": "abc"}],
    "max_tokens": 8,
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "return_token_ids": True,
}


@pytest.fixture
def ask():
    """One answer of the server, with a clock that counts its readings."""

    def run(server, body=BODY, **options):
        readings = itertools.count()

        async def talk():
            async with OpenAiClient(server.base_url, clock=lambda: float(next(readings)), **options) as client:
                return await client.stream_chat(body)

        return asyncio.run(talk())

    options = {"timeout_s": 10.0}
    return lambda server, body=BODY, **more: run(server, body, **{**options, **more})


def test_every_chunk_has_a_time_and_its_number_of_tokens(openai_stand_in, ask):
    answer = ask(openai_stand_in(7))
    assert [chunk.num_tokens for chunk in answer.chunks] == [1, 3, 3, 1]
    times = [answer.sent_s, *(chunk.at_s for chunk in answer.chunks), answer.ended_s]
    assert times == sorted(times) and len(set(times)) == len(times)


def test_text_ids_usage_and_reason_are_those_of_the_server(openai_stand_in, ask):
    answer = ask(openai_stand_in())
    assert answer.error is None
    assert answer.text == "abcabcab"
    assert answer.token_ids == tuple(map(ord, "abcabcab"))
    assert (answer.num_prompt_tokens, answer.num_output_tokens, answer.finish_reason) == (7, 8, "length")


def test_without_token_ids_the_sizes_come_from_continuous_usage(openai_stand_in, ask):
    server = openai_stand_in(7)
    server.has_token_ids = False
    answer = ask(server)
    assert answer.token_ids is None
    assert [chunk.num_tokens for chunk in answer.chunks] == [1, 3, 3, 1]


def test_where_nothing_tells_the_sizes_they_are_unknown_and_usage_stays(openai_stand_in, ask):
    server = openai_stand_in(7)
    server.has_token_ids = server.has_continuous_usage = False
    answer = ask(server)
    assert [chunk.num_tokens for chunk in answer.chunks] == [None] * 4
    assert answer.num_output_tokens == 8


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_output(openai_stand_in, ask, name):
    server = openai_stand_in()
    server.has_token_ids = server.has_continuous_usage = False
    server.delta_name = name
    answer = ask(server)
    assert len(answer.chunks) == 8
    assert answer.text == "abcabcab"


def test_the_delta_that_names_the_speaker_is_no_chunk(openai_stand_in, ask):
    assert len(ask(openai_stand_in()).chunks) == 8


def test_an_http_error_is_part_of_the_account(openai_stand_in, ask):
    server = openai_stand_in()
    server.fails_at = lambda number: 500
    answer = ask(server)
    assert (answer.status, answer.error) == (500, "HTTP 500: it broke")


def test_a_stream_that_breaks_off_keeps_what_came_and_says_so(openai_stand_in, ask):
    server = openai_stand_in()
    server.fails_at = lambda number: "cut"
    answer = ask(server)
    assert answer.error == "the stream ended without a finish reason after 2 chunks"
    assert len(answer.chunks) == 2


def test_nobody_there_is_an_error_and_no_exception(openai_stand_in, ask):
    server = openai_stand_in()
    server.stop()
    answer = ask(server)
    assert answer.status == 0
    assert "ConnectError" in answer.error


def test_an_answer_that_takes_too_long_is_given_up(openai_stand_in, ask):
    server = openai_stand_in()
    is_over = threading.Event()
    server.before = lambda number: is_over.wait(10)
    answer = ask(server, timeout_s=0.05)
    is_over.set()
    assert answer.error == "no end within 0.05 s"


def test_questions_that_nobody_answers_with_200_give_nothing(openai_stand_in):
    async def talk():
        async with OpenAiClient(openai_stand_in().base_url, timeout_s=10.0) as client:
            return (
                await client.get_text("/nowhere"),
                await client.get_json("/version"),
                await client.get_json("/metrics"),
            )

    nothing, about, no_json = asyncio.run(talk())
    assert nothing is None
    assert about["engine"] == "stand-in"
    assert no_json is None
