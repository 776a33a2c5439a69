import gzip
import json

import pytest

from dflashctl_remote.data.rows import BadRows, RowReader, read_prompts
from dflashctl_remote.spec.data import Message
from dflashctl_remote.spec.errors import BadInput

GOOD = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}


def conversations(path, *, skip=False):
    bad = BadRows(path, skip=skip)
    return list(RowReader(path, bad).conversations()), bad


def problem_of(path):
    with pytest.raises(BadInput) as caught:
        conversations(path)
    return caught.value.message


def test_row_keeps_id_category_and_messages(jsonl):
    rows, _ = conversations(jsonl([{**GOOD, "id": "a", "category": "chat"}]))
    assert (rows[0].id, rows[0].category, rows[0].is_cut) == ("a", "chat", False)
    assert rows[0].messages == (Message(role="user", content="Hi"), Message(role="assistant", content="Hello"))


def test_sharegpt_spelling_means_the_same_messages(jsonl):
    turns = [{"from": "system", "value": "Be kind"}, {"from": "human", "value": "Hi"}]
    path = jsonl([{"conversations": [*turns, {"from": "gpt", "value": "Hello"}]}])
    (row,), _ = conversations(path)
    assert [(m.role, m.content) for m in row.messages] == [
        ("system", "Be kind"),
        ("user", "Hi"),
        ("assistant", "Hello"),
    ]


def test_row_without_id_is_named_by_its_line(jsonl):
    rows, _ = conversations(jsonl([GOOD, "", GOOD]))
    assert [(r.id, r.line) for r in rows] == [("line-1", 1), ("line-3", 3)]


def test_whole_number_is_an_id(jsonl):
    (row,), _ = conversations(jsonl([{**GOOD, "id": 17}]))
    assert row.id == "17"


def test_length_as_finish_reason_marks_the_answer_as_cut(jsonl):
    (row,), _ = conversations(jsonl([{**GOOD, "finish_reason": "length"}]))
    assert row.is_cut


def test_fields_that_servers_leave_null_do_not_matter(jsonl):
    answer = {"role": "assistant", "content": "Hello", "tool_calls": None, "refusal": None}
    (row,), _ = conversations(jsonl([{"messages": [GOOD["messages"][0], answer]}]))
    assert row.messages[-1] == Message(role="assistant", content="Hello")


def test_gzipped_file_reads_the_same(tmp_path):
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress((json.dumps(GOOD) + "\n").encode() * 2))
    rows, _ = conversations(path)
    assert [r.id for r in rows] == ["line-1", "line-2"]


def test_cut_gzip_file_is_refused(tmp_path):
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress((json.dumps(GOOD) + "\n").encode() * 2)[:-12])
    assert "cannot be read as gzip" in problem_of(path)


def test_byte_order_mark_is_no_part_of_the_first_row(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode())
    assert len(conversations(path)[0]) == 1


def test_malformed_line_is_named_with_file_line_expected_and_found(jsonl):
    path = jsonl([GOOD, '{"messages": ['])
    assert problem_of(path).startswith(f"{path}:2: expected one JSON object a line, found '{{\"messages\": ['")


@pytest.mark.parametrize(
    ("line", "expected", "found"),
    [
        ("[1]", "a JSON object with messages", "a list"),
        ("3", "a JSON object with messages", "a number"),
        ("[" * 100_000, "one JSON object a line", "'[[["),
        ({"text": "x"}, '"messages" or "conversations"', "neither (keys: text)"),
        ({**GOOD, "conversations": []}, '"messages" or "conversations"', "both"),
        ({"messages": "Hi"}, 'a list in "messages"', "'Hi'"),
        ({"messages": ["Hi"]}, "an object with role and content at messages[0]", "'Hi'"),
        (
            {"messages": [{"role": "tool", "content": "x"}]},
            "'system', 'user' or 'assistant' at messages[0].role",
            "'tool'",
        ),
        ({"messages": [{"role": "user"}]}, "a text at messages[0].content", "nothing"),
        ({"messages": [{"role": "user", "content": None}]}, "a text at messages[0].content", "null"),
        (
            {"messages": [{"role": "user", "content": "x", "name": "y"}]},
            "only role, content and reasoning_content",
            "messages[0].name",
        ),
        ({"conversations": [{"from": "bot", "value": "x"}]}, "human, gpt or system", "'bot'"),
        ({"conversations": [{"from": "gpt"}]}, '"from" and a text in "value"', "an object"),
        ({**GOOD, "id": [1]}, "a text or a whole number as id", "a list"),
        ({**GOOD, "category": 3}, 'a text in "category"', "a number"),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "Unicode text", "a lone surrogate"),
    ],
)
def test_bad_row_says_what_was_expected_and_found(jsonl, line, expected, found):
    message = problem_of(jsonl([line]))
    before, _, after = message.partition(", found ")
    assert expected in before
    assert found in after


def test_bytes_that_are_no_utf8_are_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"id": "\xff"}\n')
    assert "expected UTF-8, found byte 0xff at 8" in problem_of(path)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "user", "content": "Hi"}],
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": " \n"}],
    ],
)
def test_conversation_without_an_answer_is_bad(jsonl, messages):
    assert "expected a" in problem_of(jsonl([{"messages": messages}]))


def test_answer_before_any_question_is_bad(jsonl):
    message = problem_of(jsonl([{"messages": [GOOD["messages"][1], *GOOD["messages"]]}]))
    assert "expected a user message before the first assistant message" in message


def test_second_use_of_an_id_is_bad(jsonl):
    message = problem_of(jsonl([{**GOOD, "id": "a"}, {**GOOD, "id": "a"}]))
    assert ":2: expected an id of its own, found 'a', which line 1 already has" in message


def test_skipping_keeps_the_rest_counts_and_names_the_first_five(jsonl):
    rows, bad = conversations(jsonl([*["no"] * 7, GOOD]), skip=True)
    assert [r.id for r in rows] == ["line-8"]
    assert bad.count == 7
    summary = bad.summary()
    assert "7 bad rows left out: line 1: " in summary
    assert "line 5: " in summary
    assert "line 6: " not in summary
    assert summary.endswith("; and 2 more")


def test_no_bad_row_gives_no_summary(jsonl):
    assert conversations(jsonl([GOOD]), skip=True)[1].summary() is None


def test_keys_that_nothing_reads_are_remembered(jsonl):
    path = jsonl([{**GOOD, "source": "web"}])
    reader = RowReader(path, BadRows(path, skip=False))
    list(reader.conversations())
    assert reader.ignored_keys == {"source"}


def test_progress_ends_at_the_size_of_the_file(jsonl):
    path = jsonl([GOOD, GOOD])
    reader = RowReader(path, BadRows(path, skip=False))
    list(reader.conversations())
    assert reader.done_bytes == reader.total_bytes == path.stat().st_size


@pytest.mark.parametrize(("name", "found"), [("", "a folder"), ("gone.jsonl", "nothing")])
def test_missing_file_is_refused(tmp_path, name, found):
    with pytest.raises(BadInput, match=f"found {found} there"):
        RowReader(tmp_path / name, BadRows(tmp_path, skip=False))


def test_prompts_end_with_the_user(jsonl):
    path = jsonl([{"id": "p", "messages": [*GOOD["messages"], {"role": "user", "content": "And?"}]}])
    (row,) = read_prompts(path)
    assert (row.id, row.messages[-1].content) == ("p", "And?")


def test_prompt_that_is_already_answered_is_bad(jsonl):
    with pytest.raises(BadInput, match="expected the last message to be the user's, with text, found one of the assis"):
        read_prompts(jsonl([GOOD]))


def test_file_without_a_usable_prompt_is_refused(jsonl):
    path = jsonl([GOOD])
    with pytest.raises(BadInput, match=r"found no usable row \(1 bad\)"):
        read_prompts(path, BadRows(path, skip=True))
