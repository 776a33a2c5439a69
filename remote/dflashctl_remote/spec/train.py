"""The train section: everything that decides a training run. The trainer reads only the resolved copy in run.json."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from dflashctl_remote.spec.base import Spec
from dflashctl_remote.spec.drafter import DrafterSpec
from dflashctl_remote.spec.objective import ObjectiveSpec as ObjectiveSpec  # noqa: PLC0414
from dflashctl_remote.spec.placement import PlacementSpec
from dflashctl_remote.spec.sinks import SinksSpec
from dflashctl_remote.spec.validation import ValidationSpec

Dtype = Literal["auto", "float32", "bfloat16"]
Device = Literal["auto", "cpu", "cuda"]
Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimSpec(Spec):
    learning_rate: float = Field(default=6e-4, gt=0)
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    warmup_fraction: float = Field(default=0.04, ge=0, lt=1)
    min_lr_fraction: float = Field(default=0.0, ge=0, le=1)
    clip_norm: float = Field(default=1.0, gt=0)
    accumulation: int = Field(default=1, gt=0)
    """Batches an optimizer step."""


class BatchSpec(Spec):
    tokens_per_batch: int = Field(default=8192, gt=0)
    """Context tokens of a packed row, padding included: a fixed shape."""
    block_ratio: float = Field(default=1.0, gt=0)
    """r: block tokens per context token; anchors a batch = r * tokens_per_batch / block_size."""
    max_length_tokens: int = Field(default=4096, gt=0)
    """Longer documents are cut here, and counted."""

    def num_anchors(self, block_size: int) -> int:
        """Blocks of a batch: block_ratio * tokens_per_batch / block_size, rounded; 0 if there is no room for one."""
        return round(self.block_ratio * self.tokens_per_batch / block_size)


class CheckpointSpec(Spec):
    every_steps: int = Field(default=500, gt=0)
    keep: int = Field(default=3, gt=0)
    """Newest so many stay; step 0 and the last always do."""
    keep_best: int = Field(default=1, ge=0)
    """So many of the highest tau, as measured by the validation at their step, stay as well."""
    every_hours: float | None = Field(default=None, gt=0)
    """One in so many hours stays as well, for as long as the run's folder is there."""


class TrainSpec(Spec):
    target: str
    """Folder of the frozen Hugging Face causal LM."""
    dataset: str
    """Folder written by `data tokenize`."""
    num_steps: int = Field(gt=0)
    """Optimizer steps of the whole run; the schedule's length."""
    warm_start: str | None = None
    """Folder in the z-lab layout, ours or public, whose weights a new run begins with; None: new weights."""
    drafter: DrafterSpec = DrafterSpec()
    objective: ObjectiveSpec = ObjectiveSpec()
    optim: OptimSpec = OptimSpec()
    batch: BatchSpec = BatchSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    placement: PlacementSpec = PlacementSpec()
    validation: ValidationSpec = ValidationSpec()
    sinks: SinksSpec = SinksSpec()
    seed: int = Field(default=0, ge=0, lt=2**63)
    device: Device = "auto"
    dtype: Dtype = "auto"
    """Of target and drafter; auto: bfloat16 on a GPU, float32 on a CPU."""
    attention: Literal["auto", "eager", "flex", "triton"] = "auto"
    """auto: flex on a GPU, eager on a CPU. triton: our own kernels, and flex for layers with a window."""
    num_threads: int | None = Field(default=None, gt=0)
    """CPU threads of torch; None: torch's own choice."""
    protected: bool = False
    """To stop or resume the run, its name must then be given once more: `--touch RUN`."""

    @model_validator(mode="after")
    def _can_be_shared(self) -> "TrainSpec":
        batches, shares = self.optim.accumulation, self.placement.num_shares
        if batches % shares:
            whose = "processes" if self.placement.num_drafters == 1 else "drafters"
            raise ValueError(
                f"optim.accumulation {batches} cannot be shared by the {shares} {whose} of this placement; use a "
                f"multiple of {shares}"
            )
        return self


class RunRecord(Spec):
    """run.json: the resolved spec and where the code came from."""

    run_id: str
    created_at_s: float
    bundle_sha: str
    git_sha: str | None = None
    is_git_dirty: bool | None = None
    train: TrainSpec
