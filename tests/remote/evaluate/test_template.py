import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dflashctl_remote.data.chat import ChatTokenizer, tokenizer_sha256
from dflashctl_remote.data.shards import Dataset, Document, ShardWriter
from dflashctl_remote.evaluate.template import compare_template, prompt_end
from dflashctl_remote.spec.data import DatasetInfo, Message
from dflashctl_remote.spec.manifest import write_manifest

DEMO_TARGET = Path(__file__).parents[3] / "dflashctl" / "assets" / "demo_target"
THINKING = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)


@pytest.fixture
def chat(tmp_path: Path) -> ChatTokenizer:
    """Of a template that knows enable_thinking, on by default."""
    folder = tmp_path / "target"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json"):
        shutil.copy(DEMO_TARGET / name, folder)
    (folder / "chat_template.jinja").write_text(THINKING)
    return ChatTokenizer.open(folder)


@pytest.fixture
def make_dataset(tmp_path: Path, chat: ChatTokenizer) -> Callable[..., Dataset]:
    def make(prompts: Sequence[Sequence[int]], template: str | None = None) -> Dataset:
        folder = tmp_path / "dataset"
        folder.mkdir()
        with ShardWriter(folder) as writer:
            for index, prompt in enumerate(prompts):
                ids = np.array([*prompt, 5, 6, 7], np.int64)
                writer.add(Document(ids, np.arange(len(ids)) >= len(prompt), f"d{index}"))
        info = DatasetInfo(
            num_documents=writer.num_documents,
            num_tokens=writer.num_tokens,
            num_supervised_tokens=writer.num_supervised,
            num_skipped_rows=0,
            num_truncated=0,
            max_document_tokens=writer.max_document_tokens,
            max_length_tokens=64,
            target=str(chat.folder),
            tokenizer_sha256=tokenizer_sha256(chat.folder),
            template_sha256=template or chat.template_sha256,
            input_sha256="",
        )
        write_manifest(folder, "dataset", bundle_sha="b", about=info.model_dump())
        return Dataset.open(folder)

    return make


def prompts(chat: ChatTokenizer, arguments: dict[str, Any] | None = None) -> list[list[int]]:
    questions = ("What is a list?", "Add two numbers.", "Why?")
    return [chat.prompt_ids([Message(role="user", content=question)], arguments) for question in questions]


def test_the_end_of_a_prompt_is_what_the_template_puts_after_the_user(chat: ChatTokenizer) -> None:
    end = prompt_end(chat)
    assert end is not None
    assert chat.tokenizer.decode(list(end)).endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_prompts_rendered_alike_are_alike(chat: ChatTokenizer, make_dataset: Callable[..., Dataset]) -> None:
    found = compare_template(chat, make_dataset(prompts(chat)))
    assert found is not None and found.is_alike
    assert (found.num_documents, found.num_alike) == (3, 3)


def test_data_made_without_thinking_and_served_with_it_is_named(
    chat: ChatTokenizer, make_dataset: Callable[..., Dataset]
) -> None:
    found = compare_template(chat, make_dataset(prompts(chat, {"enable_thinking": False})))
    assert found is not None and not found.is_alike
    assert "3 of 3 prompts" in found.says
    assert "they end as with enable_thinking=false" in found.says


def test_serving_without_thinking_what_was_trained_with_it_is_named(
    chat: ChatTokenizer, make_dataset: Callable[..., Dataset]
) -> None:
    found = compare_template(chat, make_dataset(prompts(chat)), {"enable_thinking": False})
    assert found is not None
    assert "end otherwise than served enable_thinking=false: they end as with enable_thinking=true" in found.says


def test_another_template_altogether_is_said(chat: ChatTokenizer, make_dataset: Callable[..., Dataset]) -> None:
    found = compare_template(chat, make_dataset([[9, 8, 7], [4, 5, 6]], template="other"))
    assert found is not None
    assert found.says.endswith("it was made with another chat template")
