"""Tokenise the corpus for training, build the chat samples and write the demo's prompt files.

Splits stay apart by file, and a held-out function whose code also stands in a training file is
dropped. Not for choosing sources (`corpus.py`) or for phrasing prompts (`chat.py`).
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from scripts.demo_target.chat import samples_of
from scripts.demo_target.loops import SPAN, distinct_share, in_repeated_span

MAX_PROMPT_TOKENS = 96
MIN_ANSWER_TOKENS, MAX_ANSWER_TOKENS = 100, 400
MIN_DISTINCT_4GRAMS = 0.75
SPLITS = ("train", "valid", "heldout")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for code.npz and chat.npz")
    parser.add_argument("--prompts", type=Path, required=True, help="folder for the prompt files")
    parser.add_argument("--max-package-bytes", type=int, default=6_000_000, help="of training text a package")
    parser.add_argument("--max-tokens", type=int, default=30_000_000, help="of training code")
    parser.add_argument("--max-chat-samples", type=int, default=40_000)
    parser.add_argument("--num-train-prompts", type=int, default=5_000)
    parser.add_argument("--num-heldout-prompts", type=int, default=100)
    args = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer, model_max_length=int(1e9))
    rows = _capped(args.corpus, args.max_package_bytes)
    args.out.mkdir(parents=True, exist_ok=True)
    args.prompts.mkdir(parents=True, exist_ok=True)
    _write_code(rows, tokenizer, args.out / "code.npz", args.max_tokens)

    chat = _chat_samples(rows, tokenizer, args.max_chat_samples)
    _write_chat(chat, args.out / "chat.npz")
    for split, count in (("train", args.num_train_prompts), ("heldout", args.num_heldout_prompts)):
        _write_prompts(chat[split][:count], args.prompts / f"prompts-{split}.jsonl", split)


def _capped(corpus: Path, max_package_bytes: int) -> list[dict[str, Any]]:
    """Shuffled files, training text of one package limited so that no package rules the corpus."""
    with corpus.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    random.Random(0).shuffle(rows)
    sizes: Counter[str] = Counter()
    kept = []
    for row in rows:
        if row["split"] == "train":
            sizes[row["package"]] += len(row["text"])
            if sizes[row["package"]] > max_package_bytes:
                continue
        kept.append(row)
    return kept


def _write_code(rows: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase, path: Path, limit: int) -> None:
    """Documents of each split in one uint16 stream, <|endoftext|> after each, and the size of their text."""
    arrays: dict[str, np.ndarray] = {}
    for split in SPLITS:
        texts = [row["text"] for row in rows if row["split"] == split]
        stream: list[np.ndarray] = []
        num_tokens = num_bytes = 0
        for start in range(0, len(texts), 256):
            batch = texts[start : start + 256]
            ids = tokenizer(batch, add_special_tokens=False)["input_ids"]
            stream += [np.array([*i, tokenizer.pad_token_id], dtype=np.uint16) for i in ids]
            num_tokens += sum(map(len, ids)) + len(ids)
            num_bytes += sum(len(text.encode()) for text in batch)
            if num_tokens > limit:
                break
        arrays[split] = np.concatenate(stream)
        ratio = num_bytes / num_tokens
        arrays[f"{split}_bytes"] = np.array(num_bytes)
        print(f"code {split}: {len(stream)} files, {num_tokens} tokens, {ratio:.3f} bytes a token")
    np.savez_compressed(path, **arrays)


def _chat_samples(
    rows: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase, max_train: int
) -> dict[str, list[dict[str, Any]]]:
    """Accepted samples by split, each with its token ids, one key in one split only, shuffled."""
    seen: set[str] = set()
    train_lines = {hash(x) for row in rows if row["split"] == "train" for x in _code_lines(row["text"])}
    chat: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    for split in SPLITS:
        for row in rows:
            if row["split"] != split or len(chat[split]) >= max_train:
                continue
            candidates = [s for s in samples_of(row["text"]) if s.key not in seen]
            if split != "train":
                candidates = [s for s in candidates if _is_new(s.answer, train_lines)]
            for sample, ids, num_prompt in _encoded(candidates, tokenizer):
                if sample.key in seen or sample.prompt in seen:
                    continue
                seen |= {sample.key, sample.prompt}
                chat[split].append(
                    {
                        "prompt": sample.prompt,
                        "ids": ids,
                        "num_prompt": num_prompt,
                        "file": f"{row['package']}/{row['path']}",
                    }
                )
        random.Random(1).shuffle(chat[split])
        lengths = [len(s["ids"]) - s["num_prompt"] for s in chat[split]]
        print(f"chat {split}: {len(lengths)} samples, answers of {np.mean(lengths):.0f} tokens on average")
    return chat


def _encoded(candidates: list[Any], tokenizer: PreTrainedTokenizerBase) -> list[tuple[Any, list[int], int]]:
    """Samples whose prompt and answer have the wanted lengths and whose answer does not repeat itself."""
    accepted = []
    for sample in candidates:
        if not 200 <= len(sample.answer) <= 3000 or len(sample.prompt) > 500:
            continue
        user = [{"role": "user", "content": sample.prompt}]
        prompt = tokenizer.apply_chat_template(user, add_generation_prompt=True, tokenize=False)
        prompt_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        answer = tokenizer(sample.answer, add_special_tokens=False)["input_ids"]
        is_sized = MIN_ANSWER_TOKENS <= len(answer) <= MAX_ANSWER_TOKENS and len(prompt_ids) <= MAX_PROMPT_TOKENS
        if is_sized and distinct_share(answer) >= MIN_DISTINCT_4GRAMS and not any(in_repeated_span(answer, SPAN)):
            accepted.append((sample, [*prompt_ids, *answer, tokenizer.eos_token_id], len(prompt_ids)))
    return accepted


def _is_new(answer: str, train_lines: set[int]) -> bool:
    lines = _code_lines(answer)
    return sum(hash(line) in train_lines for line in lines) <= 0.3 * len(lines)


def _code_lines(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if len(line.strip()) > 16]


def _write_chat(chat: dict[str, list[dict[str, Any]]], path: Path) -> None:
    arrays: dict[str, np.ndarray] = {}
    for split, samples in chat.items():
        arrays[split] = np.array([i for s in samples for i in s["ids"]], dtype=np.uint16)
        arrays[f"{split}_lengths"] = np.array([len(s["ids"]) for s in samples], dtype=np.uint16)
        arrays[f"{split}_prompts"] = np.array([s["num_prompt"] for s in samples], dtype=np.uint16)
    np.savez_compressed(path, **arrays)


def _write_prompts(samples: list[dict[str, Any]], path: Path, split: str) -> None:
    with path.open("w", encoding="ascii") as out:
        for index, sample in enumerate(samples):
            messages = [{"role": "user", "content": sample["prompt"]}]
            out.write(json.dumps({"id": f"{split}-{index:05d}", "messages": messages}) + "\n")


if __name__ == "__main__":
    main()
