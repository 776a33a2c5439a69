"""The target answers the train prompts, many at once, until a time or a number of tokens: what both arms learn from.

Tokens are kept as they were drawn, and become the dataset of a run without being text in between. Each batch is on the
disk when it is done, so that an interrupted phase goes on where it was. The first answer to every prompt is greedy, as
decoding is; the others are drawn at a temperature, since the same answer twice teaches nothing.
"""

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from fit import fits_another
from settings import Settings
from torch import Tensor

from dflashctl_remote.data.chat import ChatTokenizer, tokenizer_sha256
from dflashctl_remote.data.rows import read_prompts
from dflashctl_remote.data.shards import Document, ShardWriter
from dflashctl_remote.spec.bundle import bundle_sha
from dflashctl_remote.spec.data import DatasetInfo
from dflashctl_remote.spec.manifest import sha256_of, write_json, write_manifest
from dflashctl_remote.target.batch import answer_batch, greedy_batch
from dflashctl_remote.target.load import Target, load_target, read_shape


@dataclass(frozen=True)
class Prompt:
    id: str
    category: str | None
    ids: tuple[int, ...]


def respond(settings: Settings, target_folder: Path, work: Path) -> dict[str, object]:
    """Write `work`/answers and `work`/dataset; what was made, as `work`/respond.json has it too."""
    source = work / "prompts-train.jsonl"
    chat = ChatTokenizer.open(target_folder)
    prompts = [Prompt(row.id, row.category, tuple(chat.prompt_ids(row.messages))) for row in read_prompts(source)]
    answers = work / "answers"
    answers.mkdir(parents=True, exist_ok=True)
    target = load_target(target_folder, device="auto", dtype="auto")
    greedy_batch(target, [prompts[0].ids], max_new_tokens=2, eos_token_ids=())
    rates = _answer_all(settings, target, prompts, answers)
    found = _write_dataset(work, prompts, target_folder, chat, sha256_of(source))
    found |= {"tokens_per_s_by_batch_size": rates, "max_new_tokens": settings.max_new_tokens}
    found |= {"temperature": settings.temperature, "num_prompts": len(prompts)}
    write_json(work / "respond.json", found)
    return found


def _answer_all(settings: Settings, target: Target, prompts: list[Prompt], folder: Path) -> dict[int, float]:
    """Tokens a second by batch size, of the best batch of each."""
    rates: dict[int, float] = {}
    cursor = tokens = 0
    spent_s = last_s = 0.0
    last_size = 1
    for path in sorted(folder.glob("batch-*.npz")):
        with np.load(path) as kept:
            cursor, tokens = int(kept["cursor"]) + len(kept["lengths"]), tokens + len(kept["tokens"])
            spent_s += float(kept["seconds"])
    while tokens < settings.respond_tokens:
        size = next((s for s in settings.batch_sizes if s not in rates), max(rates, key=rates.get, default=1))
        if not fits_another(spent_s, settings.respond_s, last_s, size / last_size):
            break
        # Greedy and drawn answers never share a batch.
        count = min(size, len(prompts) - cursor) if cursor < len(prompts) else size
        items = [_item(cursor + i, len(prompts), settings.seed) for i in range(count)]
        began_s = time.monotonic()
        drawn = _answers(settings, target, [prompts[i].ids for i in items], cursor, is_greedy=cursor < len(prompts))
        last_s, last_size = time.monotonic() - began_s, size
        made = sum(map(len, drawn))
        _save(folder / f"batch-{cursor:08d}.npz", items, drawn, cursor, last_s)
        spent_s, cursor, tokens = spent_s + last_s, cursor + count, tokens + made
        if count == size:
            rates[size] = max(rates.get(size, 0.0), round(made / last_s, 1))
        print(
            f"respond: {count} answers, {made} tokens in {last_s:.1f} s ({made / last_s:.0f}/s); "
            f"{tokens} tokens in {spent_s:.0f} of {settings.respond_s:.0f} s",
            flush=True,
        )
    return rates


def _item(number: int, num_prompts: int, seed: int) -> int:
    """Which prompt answer `number` is to: every prompt once a round, each round in an order of its own."""
    order = np.random.default_rng((seed, number // num_prompts)).permutation(num_prompts)
    return int(order[number % num_prompts])


def _answers(
    settings: Settings, target: Target, prompts: list[tuple[int, ...]], cursor: int, *, is_greedy: bool
) -> list[tuple[int, ...]]:
    eos = target.shape.eos_token_ids
    if is_greedy:
        return greedy_batch(target, prompts, max_new_tokens=settings.max_new_tokens, eos_token_ids=eos)
    generator = torch.Generator(target.device).manual_seed(settings.seed * 1_000_003 + cursor)

    def draw(logits_BV: Tensor) -> Tensor:
        """By the exponential race: the largest p / e is a draw from p."""
        shares = (logits_BV.float() / settings.temperature).softmax(dim=-1)
        return (shares / torch.empty_like(shares).exponential_(generator=generator)).argmax(dim=-1)

    return answer_batch(target, prompts, max_new_tokens=settings.max_new_tokens, eos_token_ids=eos, choose=draw)


def _save(path: Path, items: list[int], drawn: list[tuple[int, ...]], cursor: int, seconds: float) -> None:
    aside = path.with_name(f"{path.name}.part")
    with aside.open("wb") as file:
        np.savez(
            file,
            items=np.array(items),
            lengths=np.array([len(tokens) for tokens in drawn]),
            tokens=np.concatenate([np.array(tokens, np.uint32) for tokens in drawn]),
            cursor=cursor,
            seconds=seconds,
        )
    aside.rename(path)


def _write_dataset(
    work: Path, prompts: list[Prompt], target_folder: Path, chat: ChatTokenizer, input_sha256: str
) -> dict[str, object]:
    aside, output = work / "dataset.partial", work / "dataset"
    for folder in (aside, output):
        shutil.rmtree(folder, ignore_errors=True)
    aside.mkdir()
    num_stopped, eos = 0, read_shape(target_folder).eos_token_ids
    with ShardWriter(aside) as writer:
        for number, (prompt, answer) in enumerate(_kept(work / "answers", prompts)):
            ids = np.concatenate([np.array(prompt.ids, np.int64), answer])
            writer.add(
                Document(
                    input_ids=ids,
                    is_supervised=np.arange(len(ids)) >= len(prompt.ids),
                    id=f"{prompt.id}#{number}",
                    category=prompt.category,
                )
            )
            num_stopped += int(answer[-1]) in eos
    info = DatasetInfo(
        num_documents=writer.num_documents,
        num_tokens=writer.num_tokens,
        num_supervised_tokens=writer.num_supervised,
        num_skipped_rows=0,
        num_truncated=0,
        max_document_tokens=writer.max_document_tokens,
        max_length_tokens=writer.max_document_tokens,
        target=str(target_folder),
        tokenizer_sha256=tokenizer_sha256(target_folder),
        template_sha256=chat.template_sha256,
        input_sha256=input_sha256,
    )
    write_manifest(aside, "dataset", bundle_sha=bundle_sha(), about=info.model_dump())
    aside.rename(output)
    return {
        "num_answers": info.num_documents,
        "num_answer_tokens": info.num_supervised_tokens,
        "num_tokens": info.num_tokens,
        "num_stopped": num_stopped,
    }


def _kept(folder: Path, prompts: list[Prompt]) -> Iterator[tuple[Prompt, np.ndarray]]:
    for path in sorted(folder.glob("batch-*.npz")):
        with np.load(path) as kept:
            starts = np.cumsum([0, *kept["lengths"]])
            tokens = kept["tokens"].astype(np.int64)
            for item, start, end in zip(kept["items"], starts[:-1], starts[1:], strict=True):
                yield prompts[int(item)], tokens[start:end]
