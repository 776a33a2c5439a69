"""What the comparison is made with: the same numbers for both trainers, and the budgets of each phase."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from dflashctl_remote.spec.drafter import DrafterSpec


@dataclass(frozen=True)
class Settings:
    respond_s: float = 240.0
    """Seconds of the GPU that the target may answer for; the model's loading is beside them."""
    respond_tokens: int = 8_000_000
    """Answer tokens after which it stops before its time."""
    batch_sizes: tuple[int, ...] = (256, 512, 1024)
    """Answers at once; each is tried, and what makes most tokens a second goes on."""
    max_new_tokens: int = 512
    temperature: float = 0.8
    """Of all answers but the first to each prompt, which is greedy."""
    train_s: float = 360.0
    measure_steps: int = 200
    """Optimizer steps of the measuring phase; the second half is timed."""
    tokens_per_batch: int = 8192
    block_ratio: float = 1.0
    block_size: int = 16
    num_layers: int = 5
    num_taps: int = 5
    mask_token_id: int | None = 16
    """SmolLM2 has no mask token. 16 is <empty_output>: neither pad nor eos, and no text spells it."""
    eval_tokens: int = 128
    eval_prompts: int | None = None
    """So many held-out prompts; None: all."""
    eval_shards: int = 4
    """Processes an arm that decode at once: one prompt at a time leaves a GPU idle."""
    eval_threads: int = 2
    seed: int = 0

    @property
    def num_anchors(self) -> int:
        return round(self.block_ratio * self.tokens_per_batch / self.block_size)

    def drafter(self, target: Path) -> DrafterSpec:
        """Heads are the target's, all layers full attention, so that both trainers make the same drafter."""
        config = json.loads((target / "config.json").read_text(encoding="utf-8"))
        heads = config["num_attention_heads"]
        return DrafterSpec(
            num_layers=self.num_layers,
            num_heads=heads,
            num_kv_heads=config.get("num_key_value_heads", heads),
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            block_size=self.block_size,
            num_taps=self.num_taps,
            mask_token_id=self.mask_token_id,
        )


def tiny(settings: Settings) -> Settings:
    """Seconds of each phase on a CPU: that it works, no figure that means anything."""
    return replace(
        settings,
        respond_s=40.0,
        respond_tokens=400,
        batch_sizes=(2, 4),
        max_new_tokens=24,
        train_s=5.0,
        measure_steps=4,
        tokens_per_batch=512,
        num_layers=1,
        num_taps=2,
        eval_tokens=20,
        eval_prompts=5,
        eval_shards=2,
        eval_threads=1,
    )
