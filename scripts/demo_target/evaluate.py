"""Measure a finished demo target folder on a CPU in fp32: loops, bits per byte, a GPU's logits against it.

Prints one JSON object and, with `--show`, some answers.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from scripts.demo_target.data import read_code
from scripts.demo_target.loops import alike_figures
from scripts.demo_target.measure import answer_figures, bits_per_byte


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True, help="prompts-heldout.jsonl")
    parser.add_argument("--num-prompts", type=int, default=50)
    parser.add_argument("--data", type=Path, help="folder with code.npz: measures held-out bits per byte")
    parser.add_argument("--max-windows", type=int, default=128, help="of 1024 tokens, for bits per byte")
    parser.add_argument("--logits", type=Path, help="written by train.py on a GPU")
    parser.add_argument("--show", type=int, default=0, help="print so many answers")
    args = parser.parse_args()

    model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(args.folder)
    with args.prompts.open(encoding="utf-8") as lines:
        conversations = [json.loads(line)["messages"] for line in lines][: args.num_prompts]
    texts = [tokenizer.apply_chat_template(c, add_generation_prompt=True, tokenize=False) for c in conversations]
    prompts = tokenizer(texts, add_special_tokens=False)["input_ids"]

    report: dict[str, Any] = {"parameters": sum(p.numel() for p in model.parameters())}
    figures, answers = answer_figures(model, tokenizer, prompts)
    report |= figures | alike_figures(answers, group=len(answers))
    if args.data:
        code = read_code(args.data)
        size = int(code["heldout_bytes"])
        report["bits_per_byte"] = bits_per_byte(model, code["heldout"], size, max_windows=args.max_windows)
    if args.logits:
        report |= _logits_gap(model, args.logits)
    print(json.dumps(report, indent=2))
    for text, answer in list(zip(texts, answers, strict=True))[: args.show]:
        print(f"{'-' * 40}\n{text}{tokenizer.decode(answer)}")


@torch.no_grad()
def _logits_gap(model: torch.nn.Module, path: Path) -> dict[str, float]:
    """Norm of the difference over norm, and the largest difference, for each arithmetic stored."""
    gaps = {}
    with np.load(path) as arrays:
        reference = model(input_ids=torch.from_numpy(arrays["ids"])).logits
        for name in ("fp32", "bf16"):
            difference = torch.from_numpy(arrays[name]) - reference
            gaps[f"gpu_{name}_relative"] = (difference.norm() / reference.norm()).item()
            gaps[f"gpu_{name}_largest"] = difference.abs().max().item()
    return gaps


if __name__ == "__main__":
    main()
