"""Evaluation: the job and its report. Tau here is always measured by free-running decode, never derived."""

from typing import Literal

from pydantic import Field

from dflashctl_remote.spec.base import Spec
from dflashctl_remote.spec.parity import Parity
from dflashctl_remote.spec.train import Device, Dtype


class EvalSpec(Spec):
    target: str
    checkpoint: str
    """Folder in the z-lab layout, with manifest."""
    is_public: bool = False
    """The folder may have no manifest, as one from a hub: its tensors' names and shapes are checked, its bytes not."""
    prompts: str
    """JSONL of rows {"id", "messages"}: held-out prompts."""
    output: str
    """Folder that is written: report.json, answers.jsonl, manifest.json."""
    num_prompts: int | None = Field(default=None, gt=0)
    """Only the first so many; None: all."""
    max_new_tokens: int = Field(default=128, gt=0)
    lookup_dataset: str | None = None
    """Dataset whose supervised tokens fill the bigram table; None: only the look-up in the own text."""
    device: Device = "auto"
    dtype: Dtype = "auto"
    """auto: float32, where greedy speculative output equals plain greedy token for token."""
    num_threads: int | None = Field(default=None, gt=0)
    check_greedy: int = Field(default=2, ge=0)
    """So many prompts are decoded plainly as well and compared token for token."""
    check_parity: int = Field(default=4, ge=0)
    """Of so many answers the proposals are compared with those of the training path (the parity gate); 0: of none."""


class Tau(Spec):
    """Pooled over verify steps: tokens emitted / target passes, bonus included."""

    tau: float
    num_tokens: int
    num_verify_steps: int


class EvalReport(Spec):
    """report.json."""

    schema_version: Literal[1] = 1
    checkpoint: str
    step: int | None
    target: str
    method: Literal["free-running greedy"] = "free-running greedy"
    block_size: int
    taps: tuple[int, ...] = ()
    """Layers of the target that the drafter reads, from 0; empty in reports that did not tell yet."""
    num_prompts: int
    drafter: Tau
    drafter_without_repeats: Tau
    """The headline: steps whose tokens lie in a repeated 16-gram of the same answer are left out."""
    bigram_lookup: Tau
    """Copies what followed the last bigram earlier in prompt and answer."""
    bigram_table: Tau | None
    """Most frequent successor of the last bigram in the training responses."""
    repeated_token_share: float
    distinct_4gram_share: float
    mean_answer_tokens: float
    acceptance_by_slot: tuple[float, ...]
    """Slot k=1..K-1: share of verify steps whose first k drafts were all accepted."""
    num_greedy_checked: int
    num_greedy_equal: int
    parity: Parity | None = None
    """Whether the drafter was drafted with as it is trained; None: not asked."""
    wall_s: float
    device: str
    dtype: str
