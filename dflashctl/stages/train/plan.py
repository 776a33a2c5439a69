"""A training run as a plan: its record, its job, and the figures that decide whether to start it. Pure."""

from dataclasses import dataclass

from dflashctl.artifacts import RunRef
from dflashctl.errors import ConfigError
from dflashctl.stages.jobs import JobPlan, Site, plan_job
from dflashctl.stages.train.placing import Placing, place
from dflashctl.targets import TargetSize
from dflashctl.transport.base import Git
from dflashctl_remote.spec.data import DatasetInfo
from dflashctl_remote.spec.drafter import DrafterSpec, chosen_taps
from dflashctl_remote.spec.train import RunRecord, TrainSpec


@dataclass(frozen=True)
class Figures:
    """Counts follow from the spec; the bytes are an estimate."""

    tap_layers: tuple[int, ...]
    num_drafter_parameters: int
    context_tokens_per_step: int
    anchors_per_batch: int
    block_ratio: float
    num_batches: int
    estimated_epochs: float
    """Padding and length limits not counted."""
    estimated_checkpoint_bytes: int
    """Weights, and optimizer state for an exact resume."""
    placing: Placing


@dataclass(frozen=True)
class TrainPlan:
    run: RunRef
    record: RunRecord
    job: JobPlan
    figures: Figures


def plan_train(
    spec: TrainSpec,
    run: RunRef,
    site: Site,
    *,
    target: TargetSize,
    dataset: DatasetInfo,
    bundle_sha: str,
    git: Git | None,
    now_s: float,
    is_detached: bool = False,
) -> TrainPlan:
    """Raises ConfigError if a batch has no room for one anchor, BadInput for taps that the target does not have."""
    record = record_of(spec, run, bundle_sha=bundle_sha, git=git, now_s=now_s)
    return TrainPlan(
        run=run,
        record=record,
        job=plan_run_job(run, record, site, is_detached=is_detached),
        figures=figures_of(spec, target, dataset, num_gpus=0 if spec.device == "cpu" else None),
    )


def record_of(spec: TrainSpec, run: RunRef, *, bundle_sha: str, git: Git | None, now_s: float) -> RunRecord:
    return RunRecord(
        run_id=run.run_id,
        created_at_s=now_s,
        bundle_sha=bundle_sha,
        git_sha=git.sha if git else None,
        is_git_dirty=git.is_dirty if git else None,
        train=spec,
    )


def plan_run_job(run: RunRef, record: RunRecord, site: Site, *, is_detached: bool = False) -> JobPlan:
    """The job of a run, new or resumed: the trainer itself finds the newest complete checkpoint."""
    return plan_job(
        "train",
        record,
        run.folder,
        site,
        spec_name=run.record_path.name,
        writes=(run.folder / "checkpoints",),
        is_detached=is_detached,
        num_ranks=record.train.placement.ranks,
    )


def figures_of(spec: TrainSpec, target: TargetSize, dataset: DatasetInfo, *, num_gpus: int | None = None) -> Figures:
    """`num_gpus`: that the run is given, 0 for a CPU; None: not known before it starts."""
    drafter = spec.drafter
    taps = chosen_taps(drafter, target.num_layers)
    anchors = spec.batch.num_anchors(drafter.block_size)
    if anchors < 1:
        raise ConfigError(
            f"a batch of {spec.batch.tokens_per_batch} tokens at r = {spec.batch.block_ratio:g} "
            f"has no room for one block of {drafter.block_size}",
            hint="raise train.batch.block_ratio or train.batch.tokens_per_batch",
        )
    num_parameters = num_drafter_parameters(drafter, target, len(taps))
    num_batches = spec.num_steps * spec.optim.accumulation
    is_gpu = spec.device == "cuda" or (spec.device == "auto" and bool(num_gpus))
    is_bf16 = spec.dtype == "bfloat16" or (spec.dtype == "auto" and is_gpu)
    return Figures(
        tap_layers=taps,
        num_drafter_parameters=num_parameters,
        context_tokens_per_step=spec.batch.tokens_per_batch * spec.optim.accumulation,
        anchors_per_batch=anchors,
        block_ratio=anchors * drafter.block_size / spec.batch.tokens_per_batch,
        num_batches=num_batches,
        estimated_epochs=num_batches * spec.batch.tokens_per_batch / max(1, dataset.num_tokens),
        # fp32: weights in the export, weights and two moments in the state; bf16: half-size weights in the export
        estimated_checkpoint_bytes=num_parameters * ((2 if is_bf16 else 4) + 12),
        placing=place(
            spec,
            num_gpus=num_gpus,
            num_drafter_parameters=num_parameters,
            num_taps=len(taps),
            width=target.hidden_size,
            is_bf16=is_bf16,
        ),
    )


def num_drafter_parameters(drafter: DrafterSpec, target: TargetSize, num_taps: int) -> int:
    """Trainable parameters; embedding and head are the target's and not counted."""
    width = target.hidden_size
    queries = drafter.num_heads * drafter.head_dim
    keys = drafter.num_kv_heads * drafter.head_dim
    mlp = drafter.intermediate_size or target.intermediate_size
    attention = width * (queries + 2 * keys) + queries * width + 2 * drafter.head_dim
    layer = attention + 3 * width * mlp + 2 * width
    return num_taps * width * width + width + drafter.num_layers * layer + width
