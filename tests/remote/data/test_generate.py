import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dflashctl_remote.data.chat import ChatTokenizer
from dflashctl_remote.data.generate import Prompt, Response, generate, responses_of
from dflashctl_remote.data.rows import Row
from dflashctl_remote.data.tokenize import tokenize
from dflashctl_remote.evaluate.decode import plain_greedy
from dflashctl_remote.spec.data import GenerateSpec, Message, TokenizeSpec
from dflashctl_remote.spec.errors import BadInput
from dflashctl_remote.spec.events import Event, Notice, Progress
from dflashctl_remote.target.load import Target, load_target

DEMO_TARGET = Path(__file__).parents[3] / "dflashctl" / "assets" / "demo_target"
QUESTIONS = ("Hello", "Write a function that adds two numbers.", "Why?", "x = 1", "Explain: for i in range(3): pass")

MakeSpec = Callable[..., GenerateSpec]


class Events(list[Event]):
    """Collects what a job emits; with `stop_at` it interrupts at that many prompts, as Ctrl-C does."""

    def __init__(self, stop_at: int | None = None) -> None:
        super().__init__()
        self._stop_at = stop_at

    def __call__(self, event: Event) -> None:
        self.append(event)
        if isinstance(event, Progress) and event.done == self._stop_at:
            raise KeyboardInterrupt

    @property
    def notices(self) -> str:
        return "\n".join(event.message for event in self if isinstance(event, Notice))


@pytest.fixture(scope="module")
def demo_target() -> Target:
    return load_target(DEMO_TARGET, device="cpu", dtype="auto")


@pytest.fixture
def make_spec(tmp_path: Path) -> MakeSpec:
    rows = [
        {"id": f"q{i}", "category": "test", "messages": [{"role": "user", "content": question}]}
        for i, question in enumerate(QUESTIONS)
    ]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def make(**changes: Any) -> GenerateSpec:
        return GenerateSpec.model_validate(
            {
                "target": str(DEMO_TARGET),
                "prompts": str(prompts),
                "output": str(tmp_path / "answers.jsonl"),
                "max_new_tokens": 12,
                "batch_size": 2,
                **changes,
            }
        )

    return make


def rows_of(spec: GenerateSpec) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(spec.output).read_text().splitlines()]


def test_rows_are_the_prompts_with_the_targets_greedy_answer(make_spec: MakeSpec, demo_target: Target) -> None:
    spec = make_spec()
    generate(spec, Events())
    chat = ChatTokenizer.open(DEMO_TARGET)
    eos = demo_target.shape.eos_token_ids
    rows = {row["id"]: row for row in rows_of(spec)}
    assert rows
    for prompt in prompts_of(chat):
        if prompt.row.id not in rows:
            continue
        row = rows[prompt.row.id]
        tokens = plain_greedy(demo_target, prompt.ids, max_new_tokens=12, eos_token_ids=eos)
        (expected,) = responses_of(chat, [prompt], [tokens], eos)
        assert [message["role"] for message in row["messages"]] == ["user", "assistant"]
        assert row["messages"][1]["content"] == expected.text
        assert row["finish_reason"] == expected.finish_reason
        assert row["num_tokens"] == len(expected.tokens)
        assert row["category"] == "test"


def prompts_of(chat: ChatTokenizer) -> list[Prompt]:
    rows = [
        Row(f"q{i}", (Message(role="user", content=question),), "test", is_cut=False, line=i + 1)
        for i, question in enumerate(QUESTIONS)
    ]
    return [Prompt(row, tuple(chat.prompt_ids(row.messages))) for row in rows]


def respond(text: str, *, is_stopped: bool, tokens: list[int] | None = None) -> Response:
    chat = ChatTokenizer.open(DEMO_TARGET)
    written = tokens or chat.tokenizer(text, add_special_tokens=False)["input_ids"]
    end = [chat.tokenizer.eos_token_id] if is_stopped else []
    prompt = prompts_of(chat)[0]
    (response,) = responses_of(chat, [prompt], [(*written, *end)], {chat.tokenizer.eos_token_id})
    return response


def test_an_answer_that_ended_has_its_end_counted_and_not_written() -> None:
    response = respond("a list of names", is_stopped=True)
    assert (response.text, response.finish_reason) == ("a list of names", "stop")
    assert response.is_same_retokenised


def test_a_cut_answer_retokenises_without_an_end() -> None:
    response = respond("a list of names", is_stopped=False)
    assert response.finish_reason == "length"
    assert response.is_same_retokenised


def test_tokens_that_the_tokenizer_would_not_choose_are_noticed() -> None:
    chat = ChatTokenizer.open(DEMO_TARGET)
    letters = [chat.tokenizer.convert_tokens_to_ids(letter) for letter in "self"]
    assert len(chat.tokenizer("self", add_special_tokens=False)["input_ids"]) < 4
    response = respond("", is_stopped=True, tokens=letters)
    assert response.text == "self"
    assert not response.is_same_retokenised


def test_a_character_cut_in_its_middle_is_taken_off() -> None:
    chat = ChatTokenizer.open(DEMO_TARGET)
    whole = chat.tokenizer("ok \u4e16", add_special_tokens=False)["input_ids"]
    response = respond("", is_stopped=False, tokens=whole[:-1])
    assert response.text.strip() == "ok"
    assert response.is_same_retokenised


def test_empty_answers_are_left_out_and_counted(make_spec: MakeSpec) -> None:
    spec = make_spec()
    generated = generate(spec, Events())
    assert len(rows_of(spec)) == generated.num_rows == 5 - generated.num_empty


def test_a_target_that_answers_nothing_at_all_is_an_error(make_spec: MakeSpec, tmp_path: Path) -> None:
    mute = tmp_path / "mute"
    shutil.copytree(DEMO_TARGET, mute)
    (mute / "generation_config.json").write_text(json.dumps({"eos_token_id": list(range(4096))}))
    with pytest.raises(BadInput, match="answered all 5 prompts with nothing"):
        generate(make_spec(target=str(mute)), Events())


def test_the_rows_tokenise_without_a_word_to_as_many_tokens(make_spec: MakeSpec, tmp_path: Path) -> None:
    spec = make_spec()
    generated = generate(spec, Events())
    done = tokenize(
        TokenizeSpec(target=spec.target, input=spec.output, output=str(tmp_path / "dataset")),
        lambda done, total: None,
    )
    assert done.notices == ()
    if not generated.num_retokenised_differently:
        assert done.info.num_supervised_tokens == generated.num_tokens


def test_an_interrupted_job_resumes_with_the_same_rows(make_spec: MakeSpec, tmp_path: Path) -> None:
    whole = make_spec(output=str(tmp_path / "whole.jsonl"))
    generate(whole, Events())
    spec = make_spec()
    with pytest.raises(KeyboardInterrupt):
        generate(spec, Events(stop_at=4))
    assert not Path(spec.output).exists()
    events = Events()
    generate(spec, events)
    assert "4 of 5 answers were already there" in events.notices
    assert rows_of(spec) == rows_of(whole)
    assert not Path(f"{spec.output}.partial").exists()


def test_answers_of_other_settings_are_not_resumed(make_spec: MakeSpec) -> None:
    with pytest.raises(KeyboardInterrupt):
        generate(make_spec(), Events(stop_at=2))
    events = Events()
    spec = make_spec(max_new_tokens=3)
    generate(spec, events)
    assert "with other settings" in events.notices
    assert all(row["num_tokens"] <= 3 for row in rows_of(spec))


def test_finished_answers_are_not_made_again(make_spec: MakeSpec) -> None:
    first = generate(make_spec(), Events())
    events = Events()
    assert generate(make_spec(), events) == first
    assert "complete" in events.notices


@pytest.mark.parametrize("change", [{"max_new_tokens": 3}, {"dtype": "bfloat16"}])
def test_finished_answers_of_something_else_are_not_overwritten(make_spec: MakeSpec, change: dict[str, Any]) -> None:
    generate(make_spec(), Events())
    with pytest.raises(BadInput, match=next(iter(change))):
        generate(make_spec(**change), Events())


def test_a_file_of_the_users_is_not_overwritten(make_spec: MakeSpec) -> None:
    spec = make_spec()
    Path(spec.output).write_text("mine\n")
    with pytest.raises(BadInput, match="not written by this command"):
        generate(spec, Events())
    assert Path(spec.output).read_text() == "mine\n"


def test_answers_changed_by_hand_are_not_overwritten(make_spec: MakeSpec) -> None:
    spec = make_spec()
    generate(spec, Events())
    with Path(spec.output).open("a") as file:
        file.write("{}\n")
    with pytest.raises(BadInput, match="changed since"):
        generate(spec, Events())


def test_a_bad_prompt_stops_the_job_or_is_skipped_and_counted(make_spec: MakeSpec) -> None:
    spec = make_spec()
    with Path(spec.prompts).open("a") as file:
        file.write('{"id": "late", "messages": []}\n')
    with pytest.raises(BadInput, match=r"prompts\.jsonl:6"):
        generate(spec, Events())
    events = Events()
    generated = generate(make_spec(skip_bad=True), events)
    assert (generated.num_rows + generated.num_empty, generated.num_bad_rows) == (5, 1)
    assert "line 6" in events.notices


def test_a_prompt_that_leaves_no_room_for_the_answer_is_bad(make_spec: MakeSpec) -> None:
    with pytest.raises(BadInput, match=r"prompts\.jsonl:2: expected at most \d+ tokens"):
        generate(make_spec(max_new_tokens=2035), Events())


def test_progress_reaches_the_total(make_spec: MakeSpec) -> None:
    events = Events()
    generate(make_spec(), events)
    assert [(e.done, e.total) for e in events if isinstance(e, Progress)] == [(2, 5), (4, 5), (5, 5)]
