import hashlib

import pytest

from dflashctl.errors import ConfigError
from dflashctl.stages.bench.prompts import read_prompts


@pytest.fixture
def file(tmp_path):
    def make(text):
        path = tmp_path / "p.jsonl"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return make


def test_a_prompt_is_a_message_of_the_user(file):
    read = read_prompts(file('{"prompt": "hi", "category": "code"}\n\n{"id": 7, "prompt": "ho"}\n'))
    assert [prompt.id for prompt in read.prompts] == ["line-1", "7"]
    assert read.prompts[0].messages == ({"role": "user", "content": "hi"},)
    assert [prompt.category for prompt in read.prompts] == ["code", None]


def test_an_answer_at_the_end_is_not_asked(file):
    messages = '[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]'
    assert len(read_prompts(file(f'{{"messages": {messages}}}')).prompts[0].messages) == 1


def test_the_sum_is_of_the_file_whatever_part_of_it_is_used(file):
    text = '{"prompt": "a"}\n{"prompt": "b"}\n'
    read = read_prompts(file(text), num_prompts=1)
    assert len(read.prompts) == 1
    assert read.sha256 == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not JSON"),
        ("[1]", "expected an object, found list"),
        ('{"text": "x"}', "expected messages or a prompt, found keys text"),
        ('{"prompt": ""}', "expected messages or a prompt"),
        ('{"messages": [{"role": "wizard", "content": "x"}]}', "expected a message with role and content"),
        ('{"messages": [{"role": "user"}]}', "expected a message with role and content"),
        ('{"messages": [{"role": "assistant", "content": "x"}]}', "an answer and no question"),
        ('{"id": "a", "prompt": "again"}', "'a' was there before"),
    ],
)
def test_a_bad_line_is_named_with_file_and_line(file, line, said):
    path = file(f'{{"id": "a", "prompt": "x"}}\n\n{line}\n')
    with pytest.raises(ConfigError, match=rf"p\.jsonl:3: .*{said}"):
        read_prompts(path)


def test_what_is_no_utf_8_is_named_with_its_line(file):
    with pytest.raises(ConfigError, match=r"p\.jsonl:2: expected UTF-8, found byte 0xff"):
        read_prompts(file(b'{"prompt": "a"}\n\xff\n'))


def test_a_file_without_prompts_says_what_a_row_is(file):
    with pytest.raises(ConfigError, match="holds no prompt") as caught:
        read_prompts(file("\n\n"))
    assert '"messages"' in caught.value.hint


def test_a_file_that_is_not_there_is_a_sentence(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl cannot be read: No such file"):
        read_prompts(tmp_path / "nowhere.jsonl")
