"""Train the demo target: plain code, then chat, then rounds against loops; each stage has a time limit.

One learning rate runs through the first two: constant on code, falling to nothing during chat. With
`--start` the first two stages are skipped. `--tiny` is a smoke test for a CPU.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen3_5ForCausalLM

from scripts.demo_target.antiloop import AntiLoopConfig, reduce_loops
from scripts.demo_target.data import ChatSplit, code_windows, padded_rows, read_chat, read_code
from scripts.demo_target.kernels import use_torch_kernels
from scripts.demo_target.measure import answer_figures, answer_loss, bits_per_byte, write_logits
from scripts.demo_target.model import model_config
from scripts.demo_target.optimizer import MuonAdamW

WARMUP_STEPS = 200


class Run:
    """The model, its data and the log of one training run."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(args.tokenizer)
        self.code, self.chat = read_code(args.data), read_chat(args.data)
        torch.manual_seed(args.seed)
        self.model = Qwen3_5ForCausalLM(model_config(self.tokenizer)).to(self.device)
        self.stream = torch.from_numpy(self.code["train"].astype("int32")).to(self.device)
        self.dice = torch.Generator(self.device).manual_seed(args.seed)
        self.draw = random.Random(args.seed)
        self.started = time.monotonic()
        self.num_tokens = 0

    def log(self, stage: str, **figures: Any) -> None:
        """One JSON line on stdout and in log.jsonl."""
        row = {"stage": stage, "at_s": round(time.monotonic() - self.started, 1), **figures}
        line = json.dumps({k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()})
        print(line, flush=True)
        with (self.args.out / "log.jsonl").open("a") as out:
            out.write(line + "\n")

    def save(self, name: str) -> None:
        tied = {"lm_head.weight"}
        state = {k: v.contiguous().cpu() for k, v in self.model.state_dict().items() if k not in tied}
        save_file(state, self.args.out / f"{name}.safetensors")

    def load(self, path: Path) -> None:
        """Weights written by `save`."""
        self.model.load_state_dict(load_file(path), strict=False)
        self.model.tie_weights()

    def measure(self, stage: str, share: float = 0.25, **extra: Any) -> dict[str, float]:
        """Figures on validation files alone; held-out ones are for the end."""
        self.model.eval()
        figures, _ = answer_figures(self.model, self.tokenizer, self.chat["valid"].prompts()[: self.args.num_valid])
        figures["valid_bits_per_byte"] = bits_per_byte(
            self.model,
            self.code["valid"],
            int(self.code["valid_bytes"]),
            max_windows=int(share * self.args.max_windows),
        )
        figures["valid_answer_loss"] = answer_loss(self.model, self.chat["valid"], self.args.num_valid)
        self.model.train()
        self.log(stage, **extra, **figures)
        return figures


def main() -> None:
    args = _arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    use_torch_kernels()
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")
    run = Run(args)
    run.log(
        "start",
        parameters=sum(p.numel() for p in run.model.parameters()),
        device=_device_name(),
        torch=torch.__version__,
    )
    if args.start:
        run.load(args.start)
    else:
        _train_base(run)
        run.save("base")
    base = run.measure("base", share=1.0)
    if args.loop_seconds > 0:
        _train_against_loops(run, base)
    for path in sorted(args.out.glob("*.safetensors")) if args.heldout else []:
        _measure_heldout(run, path)


def _train_base(run: Run) -> None:
    """Code at a constant rate, then code and chat while the rate falls linearly."""
    args = run.args
    optimizer = MuonAdamW(run.model, args.lr, weight_decay=0.1)
    start = time.monotonic()
    step = 0
    window: dict[str, Any] = {"code": 0.0, "chat": 0.0}
    while (elapsed := time.monotonic() - start) < args.code_seconds + args.chat_seconds:
        is_chat = elapsed > args.code_seconds
        left = 1 - (elapsed - args.code_seconds) / max(1e-9, args.chat_seconds) if is_chat else 1.0
        optimizer.set_lr(args.lr * min(1.0, (step + 1) / WARMUP_STEPS, left))
        rows = args.rows // 2 if is_chat else args.rows
        loss = _code_loss(run, rows)
        window["code"] += loss.detach()
        if is_chat:
            chat_loss = _chat_loss(run, run.chat["train"], 2 * rows)
            window["chat"] += chat_loss.detach()
            loss = loss + chat_loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % args.log_every == 0:
            run.log(
                "chat" if is_chat else "code",
                step=step,
                tokens=run.num_tokens,
                left=left,
                **{f"{k}_loss": float(v) / args.log_every for k, v in window.items()},
            )
            window = {"code": 0.0, "chat": 0.0}
    run.log("base-end", step=step, tokens=run.num_tokens)


def _code_loss(run: Run, rows: int) -> torch.Tensor:
    ids_BT = code_windows(run.stream, rows, run.args.length, run.dice)
    run.num_tokens += ids_BT.numel()
    return _loss(run, ids_BT, ids_BT)


def _chat_loss(run: Run, split: ChatSplit, num_rows: int) -> torch.Tensor:
    rows = [run.draw.randrange(len(split.samples)) for _ in range(num_rows)]
    samples = [split.samples[r] for r in rows]
    run.num_tokens += sum(map(len, samples))
    return _loss(
        run,
        *padded_rows(samples, [split.num_prompt[r] for r in rows], run.tokenizer.pad_token_id, run.device),
    )


def _loss(run: Run, ids_BT: torch.Tensor, labels_BT: torch.Tensor) -> torch.Tensor:
    with torch.autocast(run.device.type, torch.bfloat16):
        logits = run.model(input_ids=ids_BT).logits[:, :-1]
    return F.cross_entropy(logits.float().flatten(0, 1), labels_BT[:, 1:].flatten())


def _train_against_loops(run: Run, base: dict[str, float]) -> None:
    """Keep the round with the best validation score; the score asks for few loops, then for variety."""
    best = _score(base)

    def report(num_round: int, figures: dict[str, float]) -> None:
        nonlocal best
        if num_round % run.args.measure_every:
            return
        measured = run.measure("antiloop", round=num_round, **figures)
        if _score(measured) > best:
            best = _score(measured)
            run.save("best")

    config = AntiLoopConfig(seconds=run.args.loop_seconds, **json.loads(run.args.loop_options))
    reduce_loops(run.model, run.tokenizer, run.chat["train"], run.stream, config, report)
    run.save("last")
    run.measure("end", share=1.0)


def _measure_heldout(run: Run, path: Path) -> None:
    """The figures for the card: weights rounded to bf16 as they are stored, held-out files."""
    run.load(path)
    for parameter in run.model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    run.model.eval()
    figures, _ = answer_figures(run.model, run.tokenizer, run.chat["heldout"].prompts()[:100])
    figures["bits_per_byte"] = bits_per_byte(
        run.model, run.code["heldout"], int(run.code["heldout_bytes"]), max_windows=run.args.max_windows
    )
    figures["answer_loss"] = answer_loss(run.model, run.chat["heldout"], run.args.num_valid)
    run.log("heldout", weights=path.stem, **figures)
    sample = torch.tensor([run.chat["heldout"].samples[0][:128]], device=run.device)
    write_logits(run.model, sample, path.with_suffix(".logits.npz"))


def _score(figures: dict[str, float]) -> float:
    """Zero excess over the wanted limits first (with some margin), then answers less alike and good code."""
    excess = (
        max(0.0, figures["repeated_16gram_share"] - 0.04)
        + max(0.0, 0.66 - figures["pooled_distinct_4gram_share"])
        + max(0.0, 80 - figures["mean_length_tokens"]) / 80
    )
    return -10 * excess - figures["lookup_share"] - figures["valid_bits_per_byte"]


def _device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with code.npz and chat.npz")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="weights to start the loop stage from")
    parser.add_argument("--code-seconds", type=float, default=200)
    parser.add_argument("--chat-seconds", type=float, default=120)
    parser.add_argument("--loop-seconds", type=float, default=150)
    parser.add_argument("--loop-options", default="{}", help="AntiLoopConfig fields as JSON")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--num-valid", type=int, default=256)
    parser.add_argument("--max-windows", type=int, default=1024, help="of validation code")
    parser.add_argument("--measure-every", type=int, default=2)
    parser.add_argument("--log-every", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--heldout", action="store_true", help="measure every file on held-out prompts at the end")
    parser.add_argument("--tiny", action="store_true", help="small batches for a smoke test")
    args = parser.parse_args()
    if args.tiny:
        args.rows, args.length, args.num_valid, args.max_windows, args.log_every = 4, 128, 8, 8, 5
        args.loop_options = json.dumps(
            {
                "num_prompts": 16,
                "num_samples": 16,
                "rows": 4,
                "code_rows": 2,
                "num_steps": 2,
                "max_new_tokens": 32,
            }
        )
    return args


if __name__ == "__main__":
    main()
