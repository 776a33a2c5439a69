"""A small byte-level tokenizer, with the three kinds of chat template that decide how rows are made."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from dflashctl_remote.data.chat import ChatTokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# As Qwen3's: of the answers before the last user message only what follows </think> stays.
STRIPS_THINKING = (
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.index0 < ns.last %}{{ m.content.split('</think>')[-1].lstrip('\n') }}"
    "{% elif m.reasoning_content is defined %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{{ m.content }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT = [
    "Hello there, how are you today?\n\nI am fine, and you?\n\n",
    "def add(a, b):\n    return a + b\n\n",
    "user assistant system think\n<think>\n\n</think>\n\nthe quick brown fox jumps over the lazy dog",
]


def make_target(folder: Path, template: str | None, vocab_size: int | None = None) -> Path:
    """A folder with what tokenising needs of a target; `vocab_size` None: the tokenizer's own."""
    tokenizer = Tokenizer(models.BPE())
    # As Qwen's: a run of newlines may become one token.
    words = pre_tokenizers.Split(Regex(r"\s*[\r\n]+| ?\p{L}+| ?[^\s\p{L}]+|\s+"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|MASK|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in special],
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT * 4, trainer)
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 64,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    size = vocab_size or tokenizer.get_vocab_size()
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3", "vocab_size": size}))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.fixture(scope="session")
def chatml_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target(tmp_path_factory.mktemp("targets") / "chatml", CHATML)


@pytest.fixture(scope="session")
def thinking_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target(tmp_path_factory.mktemp("targets") / "thinking", STRIPS_THINKING)


@pytest.fixture(scope="session")
def chatml(chatml_target: Path) -> ChatTokenizer:
    return ChatTokenizer.open(chatml_target)


@pytest.fixture(scope="session")
def thinking(thinking_target: Path) -> ChatTokenizer:
    return ChatTokenizer.open(thinking_target)


@pytest.fixture
def with_template(tmp_path: Path) -> Callable[[str], ChatTokenizer]:
    """The tokenizer with another template."""
    return lambda template: ChatTokenizer.open(make_target(tmp_path / "target", template))


@pytest.fixture
def target_folder(tmp_path: Path) -> Callable[..., Path]:
    """A new target folder: (template, vocab_size)."""
    return lambda template, vocab_size=None: make_target(tmp_path / "target", template, vocab_size)


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[[list[Any]], Path]:
    """Write values, or texts as they are, one a line."""

    def write(lines: list[Any]) -> Path:
        path = tmp_path / "rows.jsonl"
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("".join(t + "\n" for t in texts), encoding="utf-8")
        return path

    return write
