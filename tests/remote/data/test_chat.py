import json

import pytest

from dflashctl_remote.data.chat import ChatTokenizer, load_tokenizer, tokenizer_sha256
from dflashctl_remote.data.rows import BadRow, Row
from dflashctl_remote.spec.data import Message
from dflashctl_remote.spec.errors import BadInput


def row(*turns, is_cut=False):
    """Alternating user and assistant texts."""
    roles = ["user", "assistant"] * len(turns)
    messages = tuple(Message(role=r, content=t) for r, t in zip(roles, turns, strict=False))
    return Row("r", messages, None, is_cut, 1)


def shown(chat, sequence):
    """The text of a sequence, what is supervised in brackets."""
    pieces: list[list[int]] = []
    inside = None
    for token, is_supervised in zip(sequence.input_ids.tolist(), sequence.is_supervised.tolist(), strict=True):
        if is_supervised != inside:
            pieces.append([])
            inside = is_supervised
        pieces[-1].append(token)
    texts = [chat.tokenizer.decode(p) for p in pieces]
    starts_inside = bool(sequence.is_supervised[0])
    return "".join(f"[{t}]" if (i % 2 == 0) == starts_inside else t for i, t in enumerate(texts))


def sequences(chat, one_row):
    (result,) = chat.sequences([one_row])
    if isinstance(result, BadRow):
        raise result
    return result


def test_answer_and_its_end_of_turn_token_are_supervised_and_nothing_after(chatml):
    (sequence,) = sequences(chatml, row("Hi", "Hello there"))
    assert shown(chatml, sequence) == ("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[Hello there<|im_end|>]")


def test_white_space_that_the_assistant_wrote_stays_supervised(chatml):
    (sequence,) = sequences(chatml, row("Hi", "\n Hello \n"))
    assert shown(chatml, sequence).endswith("assistant\n[\n Hello \n<|im_end|>]")


def test_turns_of_a_template_that_keeps_history_share_a_sequence(chatml):
    (sequence,) = sequences(chatml, row("Hi", "Hello", "More", "Fine"))
    assert shown(chatml, sequence) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[Hello<|im_end|>]\n"
        "<|im_start|>user\nMore<|im_end|>\n<|im_start|>assistant\n[Fine<|im_end|>]"
    )


def test_each_turn_has_the_history_that_it_is_served_with(thinking):
    first, second = sequences(
        thinking, row("Hi", "<think>\na\n</think>\n\nHello", "More", "<think>\nb\n</think>\n\nFine")
    )
    assert shown(thinking, first) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[<think>\na\n</think>\n\nHello<|im_end|>]"
    )
    assert shown(thinking, second) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
        "<|im_start|>user\nMore<|im_end|>\n<|im_start|>assistant\n[<think>\nb\n</think>\n\nFine<|im_end|>]"
    )
    assert (first.first_turn, second.first_turn) == (1, 2)


def test_turns_that_the_template_leaves_alone_still_share_a_sequence(thinking):
    (sequence,) = sequences(thinking, row("Hi", "Hello", "More", "<think>\nb\n</think>\n\nFine"))
    assert shown(thinking, sequence).count("[") == 2


def test_reasoning_that_came_apart_is_part_of_the_answer(thinking):
    messages = (
        Message(role="user", content="Hi"),
        Message(role="assistant", content="Hello", reasoning_content="so"),
    )
    (sequence,) = sequences(thinking, Row("r", messages, None, False, 1))
    assert shown(thinking, sequence).endswith("[<think>\nso\n</think>\n\nHello<|im_end|>]")


def test_reasoning_that_the_template_would_drop_makes_the_row_bad(chatml):
    messages = (
        Message(role="user", content="Hi"),
        Message(role="assistant", content="Hello", reasoning_content="so"),
    )
    with pytest.raises(BadRow, match=r"found part of answer 1 .* changed or dropped"):
        sequences(chatml, Row("r", messages, None, False, 1))


def test_prompt_tokens_are_those_of_the_prompt_alone(chatml):
    one = row("Hi", "Hello there", "And?", "Fine")
    (sequence,) = sequences(chatml, one)
    prompt = chatml.prompt_ids(one.messages[:3])
    assert sequence.input_ids[: len(prompt)].tolist() == prompt
    assert sequence.is_supervised[len(prompt) :].all()


# As Qwen3.5's: the generation prompt opens the block, and an answer without one gets an empty one.
OPENS_THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and '</think>' in m.content %}<think>\n{{ m.content.split('<think>\n')[-1] }}"
    "{% elif m.role == 'assistant' %}<think>\n\n</think>\n\n{{ m.content }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)


def test_token_that_would_cross_the_boundary_is_split_as_in_serving(chatml):
    one = row("Hi", "\nHello")
    prompt = chatml.prompt_ids(one.messages[:1])
    whole = chatml.tokenizer("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n\nHello<|im_end|>")
    assert whole["input_ids"][: len(prompt)] != prompt
    (sequence,) = sequences(chatml, one)
    assert sequence.input_ids[: len(prompt)].tolist() == prompt
    assert shown(chatml, sequence).endswith("assistant\n[\nHello<|im_end|>]")


def test_empty_block_that_the_template_puts_before_an_answer_is_prompt(with_template):
    chat = with_template(OPENS_THINKING)
    (sequence,) = sequences(chat, row("Hi", "Hello"))
    assert shown(chat, sequence).endswith("assistant\n<think>\n\n</think>\n\n[Hello<|im_end|>]")


@pytest.mark.parametrize("opening", ["", "<think>\n"])
def test_block_that_the_prompt_opens_may_be_opened_again_in_the_row(with_template, opening):
    chat = with_template(OPENS_THINKING)
    (sequence,) = sequences(chat, row("Hi", opening + "a\n</think>\n\nHello"))
    assert shown(chat, sequence).endswith("assistant\n<think>\n[a\n</think>\n\nHello<|im_end|>]")


def test_answer_cut_while_thinking_is_not_closed_by_the_template(with_template):
    chat = with_template(OPENS_THINKING)
    (sequence,) = sequences(chat, row("Hi", "Hello the", is_cut=True))
    assert shown(chat, sequence).endswith("assistant\n<think>\n[Hello the]")


def test_reasoning_that_was_cut_is_not_closed_by_the_template(thinking):
    messages = (
        Message(role="user", content="Hi"),
        Message(role="assistant", content="", reasoning_content="Hello the"),
    )
    (sequence,) = sequences(thinking, Row("r", messages, None, True, 1))
    assert shown(thinking, sequence).endswith("assistant\n[<think>\nHello the]")


def test_answer_that_was_cut_has_no_end_of_turn_token(chatml):
    (sequence,) = sequences(chatml, row("Hi", "Hello", "More", "Fine", is_cut=True))
    assert shown(chatml, sequence).endswith("[Fine]")
    assert "[Hello<|im_end|>]" in shown(chatml, sequence)


def test_end_of_turn_is_found_by_the_generation_config_too(target_folder):
    template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.role == 'assistant' %} lazy{% endif %}{{ '\n' }}"
        "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    )
    folder = target_folder(template)
    vocabulary = json.loads((folder / "tokenizer.json").read_text())
    new_id = len(vocabulary["model"]["vocab"])
    added = {**vocabulary["added_tokens"][0], "id": new_id, "content": " lazy", "special": False}
    vocabulary["added_tokens"].append(added)
    (folder / "tokenizer.json").write_text(json.dumps(vocabulary))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [new_id]}))
    (folder / "config.json").unlink()
    chat = ChatTokenizer.open(folder)
    (sequence,) = sequences(chat, row("Hi", "Fine", is_cut=True))
    assert shown(chat, sequence) == "user: Hi\nassistant: [Fine]"


def test_turn_without_text_is_history_and_not_supervised(chatml):
    (sequence,) = sequences(chatml, row("Hi", "", "More", "Fine"))
    assert shown(chatml, sequence).count("[") == 1


def test_template_that_rewrites_the_answer_itself_makes_the_row_bad(with_template):
    chat = with_template(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
    )
    with pytest.raises(BadRow, match="render answer 1 after its generation prompt, found that it rewrites '<think>"):
        sequences(chat, row("Hi", "Hello"))


def test_template_that_drops_part_of_the_answer_makes_the_row_bad(with_template):
    chat = with_template(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    with pytest.raises(BadRow, match="changed or dropped"):
        sequences(chat, row("Hi", "<think>a</think>Hello"))


def test_messages_that_the_template_refuses_make_the_row_bad(with_template):
    chat = with_template("{{ raise_exception('no system role') }}")
    with pytest.raises(BadRow, match="found user, refused: no system role"):
        sequences(chat, row("Hi", "Hello"))


def test_ids_beyond_the_vocabulary_make_the_row_bad(target_folder, chatml):
    folder = target_folder("{% for m in messages %}{{ m.content }}{% endfor %}", vocab_size=10)
    with pytest.raises(BadRow, match="expected token ids below the target's vocabulary of 10, found"):
        sequences(ChatTokenizer.open(folder), row("Hi", "Hello"))


def test_a_bad_row_leaves_its_neighbours_alone(thinking, with_template):
    chat = with_template(
        "{% for m in messages %}{% if m.content == 'bad' %}{{ raise_exception('bad') }}{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    before, bad, after = chat.sequences([row("Hi", "a", "b", "c"), row("bad", "x"), row("Hi", "z")])
    assert isinstance(bad, BadRow)
    assert shown(chat, before[0]).endswith("[c<|im_end|>]")
    assert shown(chat, after[0]).endswith("[z<|im_end|>]")


def test_tokenizer_without_chat_template_is_refused(target_folder):
    with pytest.raises(BadInput, match="has no chat template"):
        ChatTokenizer.open(target_folder(None))


def test_folder_without_tokenizer_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"found no tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_tokenizer_file_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BadInput, match="cannot be loaded"):
        load_tokenizer(tmp_path)


def test_vocabulary_has_the_same_name_whatever_the_template(chatml_target, thinking_target):
    assert tokenizer_sha256(chatml_target) == tokenizer_sha256(thinking_target)
    assert ChatTokenizer.open(chatml_target).template_sha256 != ChatTokenizer.open(thinking_target).template_sha256
