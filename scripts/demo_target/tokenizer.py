"""Train the demo target's byte-level BPE tokenizer and write it as a Hugging Face folder.

4096 entries, specials included. Digits are single tokens and runs of spaces stay together, so that
Python's indentation costs one token a line.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCABULARY = 4096
PAD, START, EOS, MASK = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|MASK|>"
SPECIALS = [PAD, START, EOS, MASK]
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# One digit; line breaks with the indentation after them; a word with the sign before it; a run of signs.
SPLIT = r"\p{N}|(?:\r?\n)+[ \t]*|[^\r\n\p{L}\p{N}]?\p{L}+| ?[^\s\p{L}\p{N}]+|[^\S\n]+"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--max-bytes", type=int, default=25_000_000, help="of training text read")
    args = parser.parse_args()
    train_tokenizer(_texts(args.corpus, args.max_bytes)).save_pretrained(args.out)
    # The class name that every transformers version knows; version 5 would write its own new one.
    config_path = args.out / "tokenizer_config.json"
    config = json.loads(config_path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    config_path.write_text(json.dumps(config, indent=2) + "\n")


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """A fast tokenizer with the chat template, pad, eos and mask set."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIALS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=24,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        mask_token=MASK,
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
        padding_side="left",
    )


def _texts(corpus: Path, max_bytes: int) -> list[str]:
    with corpus.open(encoding="utf-8") as lines:
        texts = [row["text"] for row in map(json.loads, lines) if row["split"] == "train"]
    random.Random(0).shuffle(texts)
    kept, size = [], 0
    for text in texts:
        size += len(text)
        if size > max_bytes:
            break
        kept.append(text)
    return kept


if __name__ == "__main__":
    main()
