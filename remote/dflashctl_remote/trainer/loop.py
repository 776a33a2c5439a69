"""The training loop on one device: frozen target forward, drafter step, event, checkpoint.

Order of a step: for each of its batches a packed row, the target's states, anchors, loss, backward; then one
optimizer step. Everything that a batch needs is a function of (seed, batch), so that a resumed run repeats the
unbroken one to the bit.
"""

import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from dflashctl_remote.drafter.anchors import sample_anchors
from dflashctl_remote.drafter.noise import context_noise
from dflashctl_remote.drafter.objective import StepLoss, drafter_loss
from dflashctl_remote.spec.errors import TrainingFailed
from dflashctl_remote.spec.events import CheckpointSaved, EventLog, Notice, Step
from dflashctl_remote.spec.train import RunRecord
from dflashctl_remote.trainer.checkpoint import (
    TrainerState,
    last_good,
    newest_complete,
    prune,
    read_state,
    remove_leftovers,
    save_checkpoint,
)
from dflashctl_remote.trainer.schedule import lr_at
from dflashctl_remote.trainer.setup import Parts, prepare, settle_torch
from dflashctl_remote.trainer.stop import StopRequest
from dflashctl_remote.trainer.tally import Tally, peak_memory_bytes


@dataclass(frozen=True)
class Outcome:
    state: TrainerState
    checkpoint: Path
    """The last one, of `state`."""
    stop_reason: str | None = None
    """None: all steps are done."""
    exit_code: int = 0


def train(record: RunRecord, run_dir: Path, events: EventLog) -> Outcome:
    """Train to the last step, or until asked to stop; starting it again goes on from the newest checkpoint.

    The caller holds the run's lock (lock.py).

    Ctrl-C or SIGTERM: the batch in hand is finished, a checkpoint is saved, exit code 130. A file `stop.requested`:
    the same, exit code 0, and the file is removed. Batches of a step that was not completed are done again by
    the resume. A second Ctrl-C raises KeyboardInterrupt at once; what was published stays good. Before the first
    step, while target and data load, the first Ctrl-C does.
    Raises TrainingFailed (loss not finite, out of memory, disk full), BadInput, ArtifactCorrupt,
    ArtifactIncomplete.
    """
    checkpoints = run_dir / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    for name in remove_leftovers(checkpoints):
        events.emit(Notice(message=f"removed {name}, which a killed process had left unfinished"))
    newest = newest_complete(checkpoints)
    for rejected in newest.rejected:
        events.emit(Notice(message=f"passed over a checkpoint that is not good: {rejected}"))
    if newest.folder is not None:
        state = read_state(newest.folder)
        if state.step >= record.train.num_steps:
            events.emit(Notice(message=f"this run is finished: {newest.folder.name} is its last checkpoint"))
            return Outcome(state, newest.folder)
    settle_torch(record.train)
    parts, state = prepare(record, checkpoints, newest, events)
    with StopRequest(run_dir) as stop:
        return _run_steps(parts, state, stop, events)


def _run_steps(parts: Parts, state: TrainerState, stop: StopRequest, events: EventLog) -> Outcome:
    spec = parts.spec
    checkpoint = _checkpoint_path(parts, state)
    if state.step == 0:
        # The weights before training: `eval` compares with them.
        checkpoint = save(parts, state, events)
    saved_step = state.step
    while state.step < spec.num_steps and not stop.is_asked():
        try:
            after = train_step(parts, state, stop)
        except torch.OutOfMemoryError as error:
            raise TrainingFailed(
                f"the GPU ran out of memory in step {state.step + 1}; {last_good(parts.checkpoints)}",
                hint="lower objective.loss_chunk_rows; in a new run batch.tokens_per_batch or batch.block_ratio",
            ) from error
        if after is None:
            break
        state, event = after
        events.emit(event)
        if state.step % spec.checkpoint.every_steps == 0 or state.step == spec.num_steps:
            checkpoint, saved_step = save(parts, state, events), state.step
    if state.step == spec.num_steps:
        return Outcome(state, checkpoint)
    if saved_step != state.step:
        checkpoint = save(parts, state, events)
    reason = stop.reason()
    stop.take()
    return Outcome(state, checkpoint, reason, stop.exit_code)


def train_step(parts: Parts, state: TrainerState, stop: StopRequest) -> tuple[TrainerState, Step] | None:
    """One optimizer step from `state`; None if a stop was asked for between its batches, with nothing changed.

    Raises TrainingFailed before anything changes if the loss or the gradient is not finite.
    """
    spec, drafter = parts.spec, parts.drafter
    started_s = time.perf_counter()
    tally = Tally(drafter.config.block_size)
    batch = state.batch
    for micro in range(spec.optim.accumulation):
        if micro > 0 and stop.is_asked():
            drafter.zero_grad(set_to_none=True)
            return None
        batch_loss(parts, batch, tally).loss_sum.backward()
        batch += 1
        _refuse_not_finite("the loss", tally.loss_sum, parts, state)

    grad_norm = parts.optimizer.take_gradients(tally.weight_sum)
    _refuse_not_finite("the gradient's norm", grad_norm, parts, state)
    step = state.step + 1
    learning_rate = lr_at(step, spec.num_steps, spec.optim)
    parts.optimizer.step(learning_rate)

    epoch = parts.plan.epoch_of(batch)
    event = Step(
        step=step,
        num_steps=spec.num_steps,
        batch=batch,
        epoch=epoch,
        loss=tally.loss,
        accuracy=tally.accuracy,
        accuracy_by_slot=tally.accuracy_by_slot,
        learning_rate=learning_rate,
        grad_norm=grad_norm,
        num_anchors=tally.num_anchors,
        num_scored_slots=tally.num_scored,
        context_tokens_per_s=tally.num_tokens / (time.perf_counter() - started_s),
        block_ratio=tally.block_ratio,
        peak_memory_bytes=peak_memory_bytes(parts.device),
    )
    after = state.model_copy(update={"step": step, "batch": batch, "epoch": epoch, "loss": tally.loss})
    return after, event


def batch_loss(parts: Parts, batch: int, tally: Tally) -> StepLoss:
    """The loss of one batch, a function of (weights, seed, batch), counted into `tally`."""
    spec = parts.spec
    row = parts.plan.row(batch)
    states = parts.target.states(row, parts.drafter.config.tap_layers)
    anchors = sample_anchors(row, num_anchors=parts.num_anchors, seed=spec.seed, batch=batch)
    loss = drafter_loss(
        parts.drafter,
        parts.target,
        row,
        states,
        anchors,
        spec.objective,
        attention=parts.attention,
        noise=context_noise(
            spec.objective,
            seed=spec.seed,
            sequence=batch,
            num_batches=spec.num_steps * spec.optim.accumulation,
        ),
    )
    tally.add(row, anchors, loss)
    return loss


def save(parts: Parts, state: TrainerState, events: EventLog) -> Path:
    """Publish a checkpoint of `state`, say so, and delete what is no longer kept.

    Raises TrainingFailed if a weight is not finite: such a checkpoint must never become the last good one.
    """
    started_s = time.perf_counter()
    for name, parameter in parts.drafter.named_parameters():
        if not parameter.isfinite().all():
            raise TrainingFailed(
                f"{name} is not finite after step {state.step}, nothing was saved; {last_good(parts.checkpoints)}",
                hint="lower optim.learning_rate in a new run",
            )
    spec = parts.spec
    path = save_checkpoint(
        parts.checkpoints,
        parts.drafter,
        parts.optimizer.state_dict(),
        state,
        bundle_sha=parts.record.bundle_sha,
        about={
            "run_id": parts.record.run_id,
            "step": state.step,
            "num_steps": spec.num_steps,
            "batch": state.batch,
            "epoch": state.epoch,
            "loss": state.loss,
            "target": spec.target,
            "dataset": spec.dataset,
            "block_size": parts.drafter.config.block_size,
            "warm_start_sha256": state.warm_start_sha256,
        },
    )
    size_bytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    seconds_s = time.perf_counter() - started_s
    events.emit(CheckpointSaved(step=state.step, path=str(path), size_bytes=size_bytes, seconds_s=seconds_s))
    prune(parts.checkpoints, keep=spec.checkpoint.keep)
    return path


def _checkpoint_path(parts: Parts, state: TrainerState) -> Path:
    return parts.checkpoints / f"step-{state.step:08d}"


def _refuse_not_finite(what: str, value: float, parts: Parts, state: TrainerState) -> None:
    if math.isfinite(value):
        return
    raise TrainingFailed(
        f"{what} is {value} in step {state.step + 1} (batches from {state.batch}), nothing was changed; "
        f"{last_good(parts.checkpoints)}",
        hint="look at these rows with `dflashctl data inspect`, or lower optim.learning_rate in a new run",
    )
