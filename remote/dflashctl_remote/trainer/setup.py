"""How a run begins, new or resumed: everything that stays the same while it trains, and where it stands."""

import copy
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dflashctl_remote.data.chat import tokenizer_sha256
from dflashctl_remote.data.loader import BatchPlan
from dflashctl_remote.data.shards import Dataset
from dflashctl_remote.drafter.model import Drafter, FrozenEnds
from dflashctl_remote.drafter.objective import AttentionName
from dflashctl_remote.drafter.warm_start import warm_started
from dflashctl_remote.losses.confidence.head import add_confidence
from dflashctl_remote.spec.drafter import DrafterConfig, resolve_drafter
from dflashctl_remote.spec.errors import BadInput
from dflashctl_remote.spec.events import EventLog, Notice
from dflashctl_remote.spec.manifest import read_manifest
from dflashctl_remote.spec.train import RunRecord, TrainSpec
from dflashctl_remote.target.load import Target, load_target, resolve_device, resolve_dtype, target_sha256
from dflashctl_remote.trainer.checkpoint import (
    Newest,
    TrainerState,
    load_checkpoint,
    read_state,
    refuse_other_settings,
)
from dflashctl_remote.trainer.devices import CopiedEnds, stage_devices
from dflashctl_remote.trainer.optim import MasterAdamW
from dflashctl_remote.trainer.order import Order
from dflashctl_remote.trainer.ranks import Ranks
from dflashctl_remote.trainer.validation import HeldOut, hold_out


@dataclass(frozen=True)
class Parts:
    """What a training step works with. Drafter and optimizer change in place; nothing else does."""

    record: RunRecord
    checkpoints: Path
    device: torch.device
    """Of the first drafter, which is the one that is stepped and saved."""
    attention: AttentionName
    targets: tuple[Target, ...]
    """One a target stage; stages that share a GPU share its target."""
    ends: tuple[FrozenEnds, ...]
    """One a drafter: the target's embedding and head, on its device."""
    plan: BatchPlan
    num_anchors: int
    """Of a batch."""
    drafters: tuple[Drafter, ...]
    optimizer: MasterAdamW
    order: Order
    ranks: Ranks
    held_out: HeldOut | None = None
    """What validations measure on; None: nothing is validated."""

    @property
    def spec(self) -> TrainSpec:
        return self.record.train

    @property
    def config(self) -> DrafterConfig:
        return self.drafters[0].config


def settle_torch(spec: TrainSpec) -> None:
    """Threads as asked; on a CPU only algorithms whose sums come in one order, for a resume exact to the bit."""
    if spec.num_threads is not None:
        torch.set_num_threads(spec.num_threads)
    torch.use_deterministic_algorithms(resolve_device(spec.device).type == "cpu")


def prepare(
    record: RunRecord, checkpoints: Path, newest: Newest, events: EventLog, ranks: Ranks | None = None
) -> tuple[Parts, TrainerState]:
    """Load targets and dataset, then a new drafter, or the one of the newest checkpoint beyond step 0.

    Raises BadInput: a dataset of another tokenizer, a batch without room for a block, a resume with other settings,
    a warm start from another drafter; ArtifactCorrupt, ArtifactIncomplete.
    """
    spec, ranks = record.train, ranks or Ranks()
    order = Order(spec.optim.accumulation, spec.placement.num_drafters, ranks.rank, ranks.size)
    on = stage_devices(spec, ranks)
    device = on.drafters[0]
    dtype = resolve_dtype(spec.dtype, device)
    dataset = _open_dataset(spec)
    loaded = {where: load_target(spec.target, device=where, dtype=dtype) for where in dict.fromkeys(on.targets)}
    target = loaded[on.targets[0]]
    events.emit(Notice(message=f"target: {target.how_packed}"))
    config = resolve_drafter(spec.drafter, target.shape)
    num_anchors = _num_anchors(spec, config.block_size)
    held_out = hold_out(
        spec.validation,
        dataset,
        Path(spec.target),
        tokens_per_batch=spec.batch.tokens_per_batch,
        max_length_tokens=spec.batch.max_length_tokens,
        num_anchors=num_anchors,
        max_positions=target.shape.max_position_embeddings,
    )
    for message in held_out.notices:
        events.emit(Notice(message=message))
    plan = BatchPlan(
        dataset,
        tokens_per_batch=spec.batch.tokens_per_batch,
        max_length_tokens=spec.batch.max_length_tokens,
        seed=spec.seed,
        excluded=held_out.excluded,
    )
    _notice_left_out(plan, len(dataset), events)
    state = _state_before_training(spec, dtype)
    folder = newest.folder
    if folder is not None and read_state(folder).step > 0:
        drafter, optimizer, state = _continued(folder, config, state, device=device, dtype=dtype)
        events.emit(Notice(message=f"resuming from {folder.name} (step {state.step} of {spec.num_steps})"))
    else:
        drafter, optimizer, sha256 = _begun(spec, config, device=device, dtype=dtype)
        state = state.model_copy(update={"warm_start_sha256": sha256})
        if sha256 is not None:
            events.emit(Notice(message=f"weights begin as those of {spec.warm_start} (sha256 {sha256[:12]})"))
    parts = Parts(
        record=record,
        checkpoints=checkpoints,
        device=device,
        attention=_attention(spec, device),
        targets=tuple(loaded[where] for where in on.targets),
        ends=tuple(loaded[where] if where in loaded else CopiedEnds(target, where) for where in on.drafters),
        plan=plan,
        num_anchors=num_anchors,
        held_out=held_out,
        drafters=(drafter, *(_copy_of(drafter, where) for where in on.drafters[1:])),
        optimizer=optimizer,
        order=order,
        ranks=ranks,
    )
    return parts, state


def _begun(
    spec: TrainSpec, config: DrafterConfig, *, device: torch.device, dtype: torch.dtype
) -> tuple[Drafter, MasterAdamW, str | None]:
    """Drafter and optimizer before the first step, and the sha256 of the weights that they were given, if any were."""
    masters: dict[str, Tensor] = {}
    sha256 = None
    if spec.warm_start is None:
        drafter = Drafter(config)
        drafter.init_weights(spec.seed)
        drafter = drafter.to(device=device, dtype=dtype)
    else:
        started = warm_started(config, Path(spec.warm_start).expanduser(), device=device, dtype=dtype)
        drafter, masters, sha256 = started.drafter, started.masters, started.sha256
    if spec.objective.confidence_weight > 0:
        add_confidence(drafter, config.hidden_size)
    optimizer = MasterAdamW(drafter, spec.optim)
    optimizer.load_state_dict(optimizer.state_dict() | masters)
    return drafter, optimizer, sha256


def _copy_of(drafter: Drafter, device: torch.device) -> Drafter:
    return copy.deepcopy(drafter).to(device)


def _continued(
    folder: Path, config: DrafterConfig, start: TrainerState, *, device: torch.device, dtype: torch.dtype
) -> tuple[Drafter, MasterAdamW, TrainerState]:
    """Drafter, optimizer and state of a checkpoint, if its settings are those of `start`."""
    loaded = load_checkpoint(folder, device=device, dtype=dtype)
    refuse_other_settings(loaded.state, start)
    # Compared as written: the layout does not tell a default from the same value given.
    if loaded.drafter.config.to_zlab(start.dtype) != config.to_zlab(start.dtype):
        raise BadInput(
            f"{folder} holds a drafter of another shape than run.json and the target now give",
            hint="restore both, or start a new run",
        )
    optimizer = MasterAdamW(loaded.drafter, start.train.optim)
    optimizer.load_state_dict(loaded.optimizer)
    return loaded.drafter, optimizer, loaded.state.model_copy(update={"train": start.train})


def _state_before_training(spec: TrainSpec, dtype: torch.dtype) -> TrainerState:
    return TrainerState(
        step=0,
        batch=0,
        epoch=0.0,
        loss=None,
        dtype=str(dtype).removeprefix("torch."),
        target_sha256=target_sha256(spec.target),
        dataset_sha256=_dataset_identity(Path(spec.dataset)),
        train=spec,
    )


def _num_anchors(spec: TrainSpec, block_size: int) -> int:
    num_anchors = spec.batch.num_anchors(block_size)
    if num_anchors < 1:
        raise BadInput(
            f"a batch of {spec.batch.tokens_per_batch} tokens at r = {spec.batch.block_ratio:g} has no room for one "
            f"block of {block_size}",
            hint="raise batch.block_ratio or batch.tokens_per_batch",
        )
    return num_anchors


def _attention(spec: TrainSpec, device: torch.device) -> AttentionName:
    if spec.attention != "auto":
        return spec.attention
    return "flex" if device.type == "cuda" else "eager"


def _open_dataset(spec: TrainSpec) -> Dataset:
    dataset = Dataset.open(Path(spec.dataset))
    if tokenizer_sha256(Path(spec.target)) != dataset.info.tokenizer_sha256:
        raise BadInput(
            f"{spec.dataset} was made with the tokenizer of {dataset.info.target}, not of {spec.target}",
            hint="run `dflashctl data tokenize` for this target",
        )
    return dataset


def _notice_left_out(plan: BatchPlan, num_documents: int, events: EventLog) -> None:
    if plan.num_cut:
        events.emit(Notice(message=f"{plan.num_cut} of {num_documents} documents are cut to {plan.max_length_tokens}"))
    if plan.num_unusable:
        events.emit(
            Notice(message=f"{plan.num_unusable} of {num_documents} documents have no place for a block, left out")
        )


def _dataset_identity(folder: Path) -> str:
    """Of all its files, by the manifest."""
    files = [(entry.path, entry.sha256) for entry in read_manifest(folder, "dataset").files]
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()
