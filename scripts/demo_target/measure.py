"""Figures of a model during and after training: bits per byte, answer loss, loops, peakedness."""

from __future__ import annotations

import copy
import math
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase, Qwen3_5ForCausalLM

from scripts.demo_target.chat import answer_is_python
from scripts.demo_target.data import ChatSplit, padded_rows
from scripts.demo_target.decode import generate
from scripts.demo_target.loops import alike_figures, report_loops

ANSWER_TOKENS = 128


@torch.no_grad()
def bits_per_byte(
    model: Qwen3_5ForCausalLM, stream: np.ndarray, num_bytes: int, length: int = 1024, max_windows: int = 4096
) -> float:
    """Over windows of `length` tokens that each start from nothing; bytes are their share of the text."""
    windows = torch.from_numpy(stream[: len(stream) // length * length].astype(np.int64)).view(-1, length)
    windows = windows[:max_windows]
    nats, count = 0.0, 0
    for batch in windows.to(model.device).split(32):
        logits = model(input_ids=batch).logits[:, :-1].float()
        nats += F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum").item()
        count += batch[:, 1:].numel()
    return nats / count / math.log(2) * len(stream) / num_bytes


@torch.no_grad()
def write_logits(model: Qwen3_5ForCausalLM, ids_BT: torch.Tensor, path: Path) -> None:
    """Ids and the logits of fp32 and bf16 arithmetic, to hold another machine's against."""
    logits = {"fp32": model(input_ids=ids_BT).logits}
    logits["bf16"] = copy.deepcopy(model).bfloat16()(input_ids=ids_BT).logits
    arrays = {name: value.float().cpu().numpy() for name, value in logits.items()}
    np.savez_compressed(path, ids=ids_BT.cpu().numpy(), **arrays)


@torch.no_grad()
def answer_loss(model: Qwen3_5ForCausalLM, split: ChatSplit, num_samples: int = 256) -> float:
    """Mean nats a token of real answers."""
    nats, count = 0.0, 0
    for start in range(0, min(num_samples, len(split.samples)), 64):
        part = slice(start, start + 64)
        rows = padded_rows(split.samples[part], split.num_prompt[part], model.config.pad_token_id, model.device)
        ids_BT, labels_BT = rows
        logits = model(input_ids=ids_BT).logits[:, :-1].float()
        labels = labels_BT[:, 1:].flatten()
        nats += F.cross_entropy(logits.flatten(0, 1), labels, reduction="sum").item()
        count += int((labels >= 0).sum())
    return nats / count


@torch.no_grad()
def answer_figures(
    model: Qwen3_5ForCausalLM, tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> tuple[dict[str, float], list[list[int]]]:
    """Loop figures of greedy answers, the share finished, and of those the share that parses; the answers."""
    eos = model.config.eos_token_id
    answers = generate(model, prompts, ANSWER_TOKENS)
    finished = [(p, a) for p, a in zip(prompts, answers, strict=True) if a[-1] == eos]
    parsed = sum(answer_is_python(tokenizer.decode(p), tokenizer.decode(a[:-1])) for p, a in finished)
    figures = asdict(report_loops(answers)) | alike_figures(answers)
    figures["finished_share"] = len(finished) / len(answers)
    figures["parsed_share_of_finished"] = parsed / max(1, len(finished))
    figures["greedy_probability"] = _greedy_probability(model, prompts, answers)
    return figures, answers


def _greedy_probability(model: Qwen3_5ForCausalLM, prompts: list[list[int]], answers: list[list[int]]) -> float:
    """Mean probability of the chosen tokens: the sharper the target, the easier it is to draft for."""
    total, count = 0.0, 0
    for start in range(0, len(prompts), 64):
        part = slice(start, start + 64)
        samples = [p + a for p, a in zip(prompts[part], answers[part], strict=True)]
        rows = padded_rows(samples, [len(p) for p in prompts[part]], model.config.pad_token_id, model.device)
        ids_BT, labels_BT = rows
        logprob = -F.cross_entropy(
            model(input_ids=ids_BT).logits[:, :-1].float().flatten(0, 1),
            labels_BT[:, 1:].flatten(),
            reduction="none",
        )
        is_answer = labels_BT[:, 1:].flatten() >= 0
        total += logprob[is_answer].exp().sum().item()
        count += int(is_answer.sum())
    return total / count
