"""A small untrained drafter for the embedded target, as a complete checkpoint, and held-out prompts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dflashctl_remote.drafter.checkpoint import save_drafter
from dflashctl_remote.drafter.model import Drafter
from dflashctl_remote.spec.drafter import DrafterSpec, resolve_drafter
from dflashctl_remote.spec.evaluate import EvalSpec
from dflashctl_remote.spec.manifest import write_manifest
from dflashctl_remote.target.load import read_shape

DEMO_TARGET = Path(__file__).parents[3] / "dflashctl" / "assets" / "demo_target"


def write_checkpoint(folder: Path) -> Path:
    spec = DrafterSpec(num_layers=1, num_heads=2, num_kv_heads=1, head_dim=32, block_size=4, tap_layers=(1, 2))
    config = resolve_drafter(spec, read_shape(DEMO_TARGET))
    drafter = Drafter(config)
    drafter.init_weights(seed=0)
    save_drafter(drafter, folder)
    write_manifest(folder, "checkpoint", bundle_sha="none", about={"step": 7})
    return folder


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "checkpoint")


@pytest.fixture
def make_spec(tmp_path: Path, checkpoint: Path) -> Callable[..., EvalSpec]:
    questions = ("Write a function that adds.", "What is a list?", "Explain this code: x = 1")
    rows = [{"id": f"p{i}", "messages": [{"role": "user", "content": q}]} for i, q in enumerate(questions)]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def make(**changes: Any) -> EvalSpec:
        return EvalSpec.model_validate(
            {
                "target": str(DEMO_TARGET),
                "checkpoint": str(checkpoint),
                "prompts": str(prompts),
                "output": str(tmp_path / "evaluation"),
                "max_new_tokens": 16,
                "check_greedy": 2,
                **changes,
            }
        )

    return make
