"""What only a CUDA device can show: bf16 with fp32 masters, compiled flex_attention in the whole objective, and the
embedded hybrid target through fla. Run there with `pytest -m gpu tests/remote`.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dflashctl_remote.data.pack import PackedRow
from dflashctl_remote.drafter.anchors import sample_anchors
from dflashctl_remote.drafter.model import Drafter
from dflashctl_remote.drafter.objective import drafter_loss
from dflashctl_remote.losses.linear_ce import linear_cross_entropy
from dflashctl_remote.spec.drafter import DrafterSpec, TargetShape, resolve_drafter
from dflashctl_remote.spec.train import ObjectiveSpec
from dflashctl_remote.target.load import load_target

ROOT = Path(__file__).parents[3]
DEMO_TARGET = ROOT / "dflashctl" / "assets" / "demo_target"
TAPS = (0, 1, 2)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),
]


def packed_row() -> PackedRow:
    """Real-looking lengths on the embedded target's vocabulary."""
    lengths, total = (137, 250, 64, 301), 1024
    generator = np.random.default_rng(0)
    ids, documents = generator.integers(10, 4000, total), np.full(total, -1)
    positions, supervised = np.zeros(total, dtype=np.int64), np.zeros(total, dtype=bool)
    start = 0
    for document, length in enumerate(lengths):
        documents[start : start + length] = document
        positions[start : start + length] = np.arange(length)
        supervised[start + 20 : start + length] = True
        start += length
    return PackedRow(ids.astype(np.int64), positions, documents.astype(np.int64), supervised, lengths)


def drafter_for(shape: TargetShape, **changes: Any) -> Drafter:
    spec = DrafterSpec(num_layers=2, num_heads=4, num_kv_heads=2, head_dim=64, block_size=8, tap_layers=TAPS, **changes)
    drafter = Drafter(resolve_drafter(spec, shape))
    drafter.init_weights(seed=0)
    return drafter


@dataclass(frozen=True)
class Frozen:
    """The target's ends and its states of the row, made once on the GPU in fp32, on some device in some dtype."""

    embedding_VE: Tensor
    head_VE: Tensor
    taps_TF: Tensor
    final_TE: Tensor
    shape: TargetShape

    def embed(self, ids: Tensor) -> Tensor:
        return self.embedding_VE[ids]

    def to(self, device: str, dtype: torch.dtype) -> "Frozen":
        tensors = (self.embedding_VE, self.head_VE, self.taps_TF, self.final_TE)
        return Frozen(*(tensor.to(device=device, dtype=dtype) for tensor in tensors), self.shape)


@pytest.fixture(scope="module")
def frozen() -> Frozen:
    target = load_target(DEMO_TARGET, device=torch.device("cuda"), dtype=torch.float32)
    states = target.states(packed_row(), TAPS)
    every_id = torch.arange(target.shape.vocab_size, device="cuda")
    return Frozen(target.embed(every_id), target.head_VE, states.taps_TF, states.final_TE, target.shape)


def loss_and_gradients(
    frozen: Frozen, device: str, dtype: torch.dtype, attention: Any, **changes: Any
) -> tuple[float, dict[str, Tensor]]:
    there = frozen.to(device, dtype)
    drafter = drafter_for(frozen.shape, **changes).to(device=device, dtype=dtype)
    row = packed_row()
    anchors = sample_anchors(row, num_anchors=128, seed=0, batch=0)
    out = drafter_loss(drafter, there, row, there, anchors, ObjectiveSpec(labels="data"), attention=attention)
    (out.loss_sum / out.weight_sum).backward()
    gradients = {name: p.grad.double().cpu() for name, p in drafter.named_parameters() if p.grad is not None}
    return float(out.loss_sum.detach()) / out.weight_sum, gradients


@pytest.mark.parametrize("changes", [{}, {"num_sliding_layers": 1, "sliding_window_tokens": 64}], ids=["full", "mixed"])
def test_flex_in_fp32_gives_the_eager_loss_and_gradients_of_the_cpu(frozen: Frozen, changes: dict[str, Any]) -> None:
    wanted, wanted_gradients = loss_and_gradients(frozen, "cpu", torch.float32, "eager", **changes)
    got, gradients = loss_and_gradients(frozen, "cuda", torch.float32, "flex", **changes)
    assert got == pytest.approx(wanted, rel=1e-4)
    for name, gradient in wanted_gradients.items():
        assert (gradients[name] - gradient).norm() <= 1e-2 * gradient.norm(), name


def test_bf16_follows_fp32(frozen: Frozen) -> None:
    wanted, wanted_gradients = loss_and_gradients(frozen, "cpu", torch.float32, "eager")
    got, gradients = loss_and_gradients(frozen, "cuda", torch.bfloat16, "flex")
    assert got == pytest.approx(wanted, rel=1e-2)
    for name, gradient in wanted_gradients.items():
        cosine = torch.nn.functional.cosine_similarity(gradients[name].flatten(), gradient.flatten(), dim=0)
        assert cosine > 0.99, name


def test_linear_cross_entropy_in_bf16_follows_fp64() -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(3000, 256, generator=generator).bfloat16()
    head = (torch.randn(20000, 256, generator=generator) / 4).bfloat16()
    labels = torch.randint(0, 20000, (3000,), generator=generator)
    weights = torch.rand(3000, generator=generator)
    exact = states.double().requires_grad_()
    plain = torch.nn.functional.cross_entropy(exact @ head.double().T, labels, reduction="none")
    (wanted,) = torch.autograd.grad((plain * weights).sum(), exact)
    ours = states.cuda().requires_grad_()
    out = linear_cross_entropy(ours, head.cuda(), labels.cuda(), weights.cuda(), chunk_rows=1024)
    (got,) = torch.autograd.grad(out.loss_sum, ours)
    # Logits are rounded to bf16: one step of it at the largest, in what is made of them.
    step = 2**-8 * float((exact @ head.double().T).detach().max())
    torch.testing.assert_close(out.cross_entropy_R.detach().double().cpu(), plain.detach(), rtol=0, atol=step)
    assert (got.double().cpu() - wanted).norm() <= step * wanted.norm()
    assert torch.equal(out.top1_R.cpu(), (exact @ head.double().T).argmax(-1))


def test_states_of_a_packed_row_equal_each_document_alone() -> None:
    target = load_target(DEMO_TARGET, device=torch.device("cuda"), dtype=torch.float32)
    row = packed_row()
    together = target.states(row, TAPS)
    start = 0
    for length in row.lengths:
        part = slice(start, start + length)
        alone = PackedRow(
            row.input_ids_T[part],
            np.arange(length),
            np.zeros(length, dtype=np.int64),
            row.is_supervised_T[part],
            (length,),
        )
        states = target.states(alone, TAPS)
        for one, other in ((together.taps_TF, states.taps_TF), (together.final_TE, states.final_TE)):
            assert (one[part] - other).norm() <= 1e-3 * other.norm()
        start += length


def test_a_run_on_the_gpu_learns_in_bf16(tmp_path: Path) -> None:
    """The real jobs: tokenize, train to the end; weights on disk are bf16."""
    prompts = (ROOT / "dflashctl" / "assets" / "demo_data" / "prompts-train.jsonl").read_text().splitlines()[:300]
    rows = [json.loads(line) for line in prompts]
    for row in rows:
        row["messages"].append({"role": "assistant", "content": "def f(x):\n    return x\n" * 6})
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    dataset, run = tmp_path / "dataset", tmp_path / "run"
    run.mkdir()
    job("tokenize", {"target": str(DEMO_TARGET), "input": str(source), "output": str(dataset)}, tmp_path)
    record = {
        "run_id": "gpu",
        "created_at_s": 0.0,
        "bundle_sha": "test",
        "train": {
            "target": str(DEMO_TARGET),
            "dataset": str(dataset),
            "num_steps": 60,
            "drafter": {
                "num_layers": 2,
                "num_heads": 4,
                "num_kv_heads": 2,
                "head_dim": 64,
                "block_size": 8,
                "tap_layers": TAPS,
            },
            "optim": {"learning_rate": 3e-3, "accumulation": 2},
            "batch": {"tokens_per_batch": 4096, "max_length_tokens": 512},
            "checkpoint": {"every_steps": 30},
        },
    }
    (run / "run.json").write_text(json.dumps(record))
    job("train", None, run)
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    steps = [event for event in events if event["kind"] == "step"]
    print("loss", steps[0]["loss"], "->", steps[-1]["loss"], "peak", steps[-1]["peak_memory_bytes"])
    print("context tokens/s", steps[-1]["context_tokens_per_s"], "at r", steps[-1]["block_ratio"])
    assert [step["step"] for step in steps] == list(range(1, 61))
    assert steps[-1]["loss"] < 0.5 * steps[0]["loss"]
    last = run / "checkpoints" / "step-00000060"
    assert json.loads((last / "config.json").read_text())["dtype"] == "bfloat16"
    for file in last.rglob("*"):
        print(file.relative_to(last), file.stat().st_size if file.is_file() else "")


def job(name: str, spec: dict[str, Any] | None, folder: Path) -> None:
    """Run an entry as a host would."""
    if spec is None:
        path = folder / "run.json"
    else:
        path = folder / f"{name}.json"
        path.write_text(json.dumps(spec))
    done = subprocess.run(
        [sys.executable, "-m", f"dflashctl_remote.entry.{name}", "--spec", path, "--events", folder / "events.jsonl"],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'remote'}:{__import__('os').environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
