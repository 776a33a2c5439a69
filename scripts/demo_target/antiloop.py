"""On-policy stage against loops: unlikelihood on the model's own repeats, imitation of its own good samples.

Unlikelihood: Welleck et al. 2019, "Neural Text Generation with Unlikelihood Training", section 5.2,
-log(1 - p) on tokens that complete a repeated n-gram of a greedy answer. Imitation: samples that
finish, parse as Python and do not repeat themselves are learnt again, which also sharpens the model.
Both can be turned against answers that resemble one another: see `overuse.py`.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase, Qwen3_5ForCausalLM

from scripts.demo_target.chat import answer_is_python
from scripts.demo_target.data import ChatSplit, code_windows, padded_rows
from scripts.demo_target.decode import generate
from scripts.demo_target.loops import SPAN, completes_repeat, distinct_share, in_repeated_span
from scripts.demo_target.overuse import Gram, RealUse, completes_any, given_away_share, successor_table


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
    samples_per_prompt: int = 1
    max_kept_per_prompt: int = 20_000
    kept_share: float = 1.0
    """Of the good samples of a round, those that the round's greedy answers give away least."""
    overuse_weight: float = 0.0
    overuse_span: int = 4
    overuse_min_share: float = 0.005
    overuse_ratio: float = 2.0
    overuse_max_probability: float = 0.9
    """Surer tokens are left alone: they mostly complete a word."""
    num_real: int = 8192
    """Real answers that overuse is held against."""


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
    real_use = RealUse.of(_real_answers(chat, config), config.overuse_span)
    num_round, started = 0, time.monotonic()
    while time.monotonic() < deadline:
        left = (deadline - time.monotonic()) / config.seconds
        for group in optimizer.param_groups:
            group["lr"] = config.lr * min(1.0, 0.1 + 1.8 * left, 0.2 + 0.2 * num_round)
        asked = draw.sample(prompts, min(len(prompts), config.num_prompts))
        greedy = list(zip(asked, generate(model, asked, config.max_new_tokens), strict=True))
        num_sampled = config.num_samples // config.samples_per_prompt
        sampled = draw.sample(prompts, min(len(prompts), num_sampled)) * config.samples_per_prompt
        fresh = _fitting(_good_samples(model, tokenizer, sampled, config, dice), [a for _, a in greedy], kept, config)
        kept.extend(fresh)
        overused: set[Gram] = set()
        if config.overuse_weight:
            overused = real_use.overused([a for _, a in greedy], config.overuse_min_share, config.overuse_ratio)
        sums: dict[str, float] = {}
        for _ in range(config.num_steps):
            for name, value in _step(model, optimizer, greedy, overused, kept, chat, code, config, draw, dice).items():
                sums[name] = sums.get(name, 0.0) + value / config.num_steps
        num_round += 1
        report(
            num_round,
            sums
            | {"num_fresh": len(fresh), "num_kept": len(kept), "num_overused": len(overused)}
            | {"elapsed_s": time.monotonic() - started},
        )


def unlikelihood(
    logits_BTV: torch.Tensor, ids_BT: torch.Tensor, is_unwanted_BT: torch.Tensor, max_probability: float = 1.0
) -> torch.Tensor:
    """Sum of -log(1 - p) over unwanted tokens of at most that probability; `logits[:, t]` predicts `ids[:, t]`."""
    flagged_NV, chosen_N = logits_BTV[is_unwanted_BT].float(), ids_BT[is_unwanted_BT]
    probability_N = flagged_NV.softmax(-1).gather(-1, chosen_N[:, None])[:, 0]
    loss_N = -torch.log1p(-probability_N.clamp(max=1 - 1e-4))
    return loss_N[probability_N <= max_probability].sum()


def _step(
    model: Qwen3_5ForCausalLM,
    optimizer: torch.optim.Optimizer,
    greedy: list[Answer],
    overused: set[Gram],
    kept: deque[Answer],
    chat: ChatSplit,
    code: torch.Tensor,
    config: AntiLoopConfig,
    draw: random.Random,
    dice: torch.Generator,
) -> dict[str, float]:
    """One update on five losses: code, real answers, own good samples, own repeats, overused n-grams."""
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
        answers = draw.sample(greedy, min(len(greedy), 2 * config.rows))
        losses["repeat"], losses["overuse"] = _unwanted_losses(model, answers, overused, config)
    weights = {
        "code": config.code_weight,
        "real": config.real_weight,
        "own": config.imitation_weight,
        "repeat": config.unlikelihood_weight,
        "overuse": config.overuse_weight,
    }
    torch.stack([weights[name] * loss for name, loss in losses.items()]).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return {name: loss.item() for name, loss in losses.items()}


def _likelihood(model: Qwen3_5ForCausalLM, ids_BT: torch.Tensor, labels_BT: torch.Tensor) -> torch.Tensor:
    logits = model(input_ids=ids_BT).logits[:, :-1].float()
    return F.cross_entropy(logits.flatten(0, 1), labels_BT[:, 1:].flatten())


def _unwanted_losses(
    model: Qwen3_5ForCausalLM, answers: list[Answer], overused: set[Gram], config: AntiLoopConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """Unlikelihood of repeats and of overused n-grams, a token of answer: long loops weigh by their length."""
    ids_BT, labels_BT = _rows(model, answers)
    is_repeat_BT = torch.zeros(ids_BT.shape, dtype=torch.bool)
    is_overused_BT = is_repeat_BT.clone()
    for row, (prompt, answer) in enumerate(answers):
        part = slice(len(prompt), len(prompt) + len(answer))
        is_repeat_BT[row, part] = torch.tensor(completes_repeat(answer, config.repeat_span))
        is_overused_BT[row, part] = torch.tensor(completes_any(answer, overused, config.overuse_span))
    logits, ids = model(input_ids=ids_BT).logits[:, :-1], ids_BT[:, 1:]
    num_tokens = (labels_BT[:, 1:] >= 0).sum()
    repeat = unlikelihood(logits, ids, is_repeat_BT[:, 1:].to(ids.device))
    overuse = unlikelihood(logits, ids, is_overused_BT[:, 1:].to(ids.device), config.overuse_max_probability)
    return repeat / num_tokens, overuse / num_tokens


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


def _fitting(
    good: list[Answer], greedy: list[list[int]], kept: Sequence[Answer], config: AntiLoopConfig
) -> list[Answer]:
    """Good samples in the order of how little they resemble the greedy answers, up to the limits; none twice."""
    table = successor_table(greedy)
    ranked = sorted(good, key=lambda one: given_away_share(one[1], table))
    num_of = Counter(tuple(prompt) for prompt, _ in kept)
    seen: set[tuple[int, ...]] = set()
    fitting = []
    for prompt, answer in ranked[: int(len(ranked) * config.kept_share)]:
        key, whole = tuple(prompt), (*prompt, *answer)
        if num_of[key] < config.max_kept_per_prompt and whole not in seen:
            num_of[key] += 1
            seen.add(whole)
            fitting.append((prompt, answer))
    return fitting


def _real_answers(chat: ChatSplit, config: AntiLoopConfig) -> list[list[int]]:
    """The first real answers, as long as the model's own may become."""
    pairs = list(zip(chat.samples, chat.num_prompt, strict=True))[: config.num_real]
    return [sample[start : start + config.max_new_tokens] for sample, start in pairs]
