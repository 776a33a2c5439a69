"""On-policy stage against loops: unlikelihood on the model's own repeats, imitation of its own good samples.

Unlikelihood: Welleck et al. 2019, "Neural Text Generation with Unlikelihood Training", section 5.2,
-log(1 - p) on tokens that complete a repeated n-gram of a greedy answer. Imitation: samples that
finish, parse as Python and do not repeat themselves are learnt again, which also sharpens the model.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase, Qwen3_5ForCausalLM

from scripts.demo_target.chat import answer_is_python
from scripts.demo_target.data import ChatSplit, code_windows, padded_rows
from scripts.demo_target.decode import generate
from scripts.demo_target.loops import SPAN, completes_repeat, distinct_share, in_repeated_span


@dataclass(frozen=True)
class AntiLoopConfig:
    """Sizes and weights of one round; every round has `num_steps` optimizer steps."""

    seconds: float = 150.0
    num_prompts: int = 1024
    num_samples: int = 2048
    max_new_tokens: int = 192
    temperature: float = 0.7
    min_answer_tokens: int = 64
    min_distinct_4grams: float = 0.72
    repeat_span: int = 6
    num_steps: int = 12
    rows: int = 64
    code_rows: int = 16
    lr: float = 3e-4
    code_weight: float = 0.5
    real_weight: float = 0.5
    unlikelihood_weight: float = 1.0
    imitation_weight: float = 0.5
    max_kept: int = 20_000


Answer = tuple[list[int], list[int]]  # prompt ids, answer ids
Report = Callable[[int, dict[str, float]], None]


def reduce_loops(
    model: Qwen3_5ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    chat: ChatSplit,
    code: torch.Tensor,
    config: AntiLoopConfig,
    report: Report,
) -> None:
    """Rounds of generating and learning until the time is up; `report` is called after each round."""
    device, deadline = model.device, time.monotonic() + config.seconds
    draw, dice = random.Random(2), torch.Generator(device).manual_seed(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, betas=(0.9, 0.95), weight_decay=0.0)
    kept: deque[Answer] = deque(maxlen=config.max_kept)
    prompts = chat.prompts()
    num_round, started = 0, time.monotonic()
    while time.monotonic() < deadline:
        left = (deadline - time.monotonic()) / config.seconds
        for group in optimizer.param_groups:
            group["lr"] = config.lr * min(1.0, 0.1 + 1.8 * left, 0.2 + 0.2 * num_round)
        asked = draw.sample(prompts, min(len(prompts), config.num_prompts))
        greedy = list(zip(asked, generate(model, asked, config.max_new_tokens), strict=True))
        fresh = _good_samples(
            model, tokenizer, draw.sample(prompts, min(len(prompts), config.num_samples)), config, dice
        )
        kept.extend(fresh)
        sums: dict[str, float] = {}
        for _ in range(config.num_steps):
            for name, value in _step(model, optimizer, greedy, kept, chat, code, config, draw, dice).items():
                sums[name] = sums.get(name, 0.0) + value / config.num_steps
        num_round += 1
        report(
            num_round,
            sums | {"num_fresh": len(fresh), "num_kept": len(kept), "elapsed_s": time.monotonic() - started},
        )


def unlikelihood(logits_BTV: torch.Tensor, ids_BT: torch.Tensor, is_repeat_BT: torch.Tensor) -> torch.Tensor:
    """Sum of -log(1 - p) over flagged tokens; `logits[:, t]` predicts `ids[:, t]`."""
    flagged_NV, chosen_N = logits_BTV[is_repeat_BT].float(), ids_BT[is_repeat_BT]
    probability_N = flagged_NV.softmax(-1).gather(-1, chosen_N[:, None])[:, 0]
    return -torch.log1p(-probability_N.clamp(max=1 - 1e-4)).sum()


def _step(
    model: Qwen3_5ForCausalLM,
    optimizer: torch.optim.Optimizer,
    greedy: list[Answer],
    kept: deque[Answer],
    chat: ChatSplit,
    code: torch.Tensor,
    config: AntiLoopConfig,
    draw: random.Random,
    dice: torch.Generator,
) -> dict[str, float]:
    """One update on four losses: code, real answers, own good samples, own repeats."""
    with torch.autocast(model.device.type, torch.bfloat16):
        windows = code_windows(code, config.code_rows, min(1024, len(code) // 2), dice)
        losses = {"code": _likelihood(model, windows, windows)}
        rows = [draw.randrange(len(chat.samples)) for _ in range(config.rows)]
        real = padded_rows(
            [chat.samples[r] for r in rows],
            [chat.num_prompt[r] for r in rows],
            model.config.pad_token_id,
            model.device,
        )
        losses["real"] = _likelihood(model, *real)
        if kept:
            own = _rows(model, [kept[draw.randrange(len(kept))] for _ in range(config.rows)])
            losses["own"] = _likelihood(model, *own)
        losses["repeat"] = _repeat_loss(model, draw.sample(greedy, min(len(greedy), 2 * config.rows)), config)
    weights = {
        "code": config.code_weight,
        "real": config.real_weight,
        "own": config.imitation_weight,
        "repeat": config.unlikelihood_weight,
    }
    torch.stack([weights[name] * loss for name, loss in losses.items()]).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return {name: loss.item() for name, loss in losses.items()}


def _likelihood(model: Qwen3_5ForCausalLM, ids_BT: torch.Tensor, labels_BT: torch.Tensor) -> torch.Tensor:
    logits = model(input_ids=ids_BT).logits[:, :-1].float()
    return F.cross_entropy(logits.flatten(0, 1), labels_BT[:, 1:].flatten())


def _repeat_loss(model: Qwen3_5ForCausalLM, answers: list[Answer], config: AntiLoopConfig) -> torch.Tensor:
    """Unlikelihood of repeats, a token of answer: long loops weigh by their length."""
    ids_BT, labels_BT = _rows(model, answers)
    is_repeat_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
    for row, (prompt, answer) in enumerate(answers):
        flags = torch.tensor(completes_repeat(answer, config.repeat_span))
        is_repeat_BT[row, len(prompt) : len(prompt) + len(answer)] = flags.to(ids_BT.device)
    logits = model(input_ids=ids_BT).logits[:, :-1]
    return unlikelihood(logits, ids_BT[:, 1:], is_repeat_BT[:, 1:]) / (labels_BT[:, 1:] >= 0).sum()


def _rows(model: Qwen3_5ForCausalLM, answers: list[Answer]) -> tuple[torch.Tensor, torch.Tensor]:
    samples = [prompt + answer for prompt, answer in answers]
    return padded_rows(samples, [len(p) for p, _ in answers], model.config.pad_token_id, model.device)


def _good_samples(
    model: Qwen3_5ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[list[int]],
    config: AntiLoopConfig,
    dice: torch.Generator,
) -> list[Answer]:
    """The sampled answers worth learning again."""
    answers = generate(model, prompts, config.max_new_tokens, config.temperature, dice)
    good = []
    for prompt, answer in zip(prompts, answers, strict=True):
        is_whole = answer[-1] == model.config.eos_token_id and len(answer) >= config.min_answer_tokens
        if not is_whole or distinct_share(answer) < config.min_distinct_4grams or any(in_repeated_span(answer, SPAN)):
            continue
        if answer_is_python(tokenizer.decode(prompt), tokenizer.decode(answer[:-1])):
            good.append((prompt, answer))
    return good
