"""The training loop: batches come from the stages before it (source.py), the drafter steps, events and checkpoints go.

Everything that a batch needs is a function of (seed, batch), and a step's sums are added in one order, so that a
resumed run, or one with other queues, repeats the unbroken one to the bit.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from dflashctl_remote.drafter.step import StepSums
from dflashctl_remote.kernels.autotune.install import install
from dflashctl_remote.kernels.autotune.sweeps import SweepWatch
from dflashctl_remote.spec.errors import TrainingFailed
from dflashctl_remote.spec.events import EventLog, Notice, Step
from dflashctl_remote.spec.sinks import SinksSpec
from dflashctl_remote.spec.train import RunRecord
from dflashctl_remote.trainer.assembly import draft, open_source, warm_up
from dflashctl_remote.trainer.checkpoint import (
    TrainerState,
    newest_complete,
    read_state,
    remove_leftovers,
)
from dflashctl_remote.trainer.ranks import RankLost, Ranks
from dflashctl_remote.trainer.replicas import Replicas
from dflashctl_remote.trainer.saving import Saving
from dflashctl_remote.trainer.schedule import lr_at
from dflashctl_remote.trainer.setup import Parts, prepare, settle_torch
from dflashctl_remote.trainer.sinks import Emitter, open_sinks
from dflashctl_remote.trainer.source import Pause, Source
from dflashctl_remote.trainer.stages import limiting
from dflashctl_remote.trainer.stop import StopRequest
from dflashctl_remote.trainer.tally import Tally, peak_memory_bytes
from dflashctl_remote.trainer.validating import Validating


@dataclass(frozen=True)
class Outcome:
    state: TrainerState
    checkpoint: Path
    """The last one, of `state`."""
    stop_reason: str | None = None
    """None: all steps are done."""
    exit_code: int = 0


def train(
    record: RunRecord,
    run_dir: Path,
    events: EventLog,
    *,
    ranks: Ranks | None = None,
    pause: Pause = lambda stage, batch: None,
) -> Outcome:
    """Train to the last step, or until asked to stop; starting it again goes on from the newest checkpoint.

    The caller holds the run's lock (lock.py) in the first process of `ranks`; the others write nothing.

    Ctrl-C or SIGTERM: the batch in hand is finished, a checkpoint is saved, exit code 130. A file `stop.requested`:
    the same, exit code 0, and the file is removed. Batches of a step that was not completed are done again by
    the resume. A second Ctrl-C raises KeyboardInterrupt at once; what was published stays good. Before the first
    step, while target and data load, the first Ctrl-C does.
    What ends a stage is raised here, after a checkpoint of the last complete step.
    Raises TrainingFailed (loss not finite, out of memory, disk full), BadInput, ArtifactCorrupt,
    ArtifactIncomplete.
    """
    ranks = ranks or Ranks()
    checkpoints = run_dir / "checkpoints"
    if ranks.is_first:
        checkpoints.mkdir(exist_ok=True)
        for name in remove_leftovers(checkpoints):
            events.emit(Notice(message=f"removed {name}, which a killed process had left unfinished"))
    ranks.wait()
    newest = newest_complete(checkpoints)
    for rejected in newest.rejected:
        events.emit(Notice(message=f"passed over a checkpoint that is not good: {rejected}"))
    if newest.folder is not None:
        state = read_state(newest.folder)
        if state.step >= record.train.num_steps:
            events.emit(Notice(message=f"this run is finished: {newest.folder.name} is its last checkpoint"))
            return Outcome(state, newest.folder)
    settle_torch(record.train)
    parts, state = prepare(record, checkpoints, newest, events, ranks)
    if parts.device.type == "cuda":
        events.emit(Notice(message=f"for threads: {install()}"))
        warm_up(parts, state)
    sinks = record.train.sinks if ranks.is_first else SinksSpec()
    with (
        open_sinks(sinks, run_dir, record.run_id, record.model_dump(mode="json"), events) as told,
        StopRequest(run_dir) as stop,
        Saving(parts, told) as saving,
        Replicas(parts.drafters, draft(parts), num_threads=record.train.num_threads) as replicas,
        open_source(parts, state.batch, pause=pause) as source,
    ):
        return _run_steps(Running(parts, source, replicas, stop, saving), state, told)


@dataclass(frozen=True)
class Running:
    """What a step works with."""

    parts: Parts
    source: Source
    replicas: Replicas
    stop: StopRequest
    saving: Saving

    def is_asked_to_stop(self) -> bool:
        """The same answer in every process."""
        return self.parts.ranks.any(self.stop.is_asked(), self.parts.device)


def _run_steps(running: Running, state: TrainerState, events: Emitter) -> Outcome:
    spec, saving = running.parts.spec, running.saving
    validating, sweeps = Validating(running.parts), SweepWatch()
    saving.begin_with(state)
    began_s = time.perf_counter()
    while state.step < spec.num_steps:
        try:
            after = None if running.is_asked_to_stop() else train_step(running, state, began_s)
        except RankLost:
            saving.save_the_last(state)
            raise
        except TrainingFailed:
            raise
        except torch.OutOfMemoryError as error:
            last = saving.save_the_last(state)
            raise TrainingFailed(
                f"the GPU ran out of memory in step {state.step + 1}; {last}",
                hint="lower objective.loss_chunk_rows or objective.anchors_per_group; "
                "in a new run batch.tokens_per_batch",
            ) from error
        except Exception:
            saving.save_the_last(state)
            raise
        if after is None:
            break
        state, event = after
        events.emit(event)
        saving.tell()
        for sweep in sweeps.take():
            events.emit(Notice(message=f"a kernel was tuned after the warm-up: {sweep}"))
        validated = validating.after(state.step, running.stop.is_asked)
        if validated is not None:
            events.emit(validated)
        if state.step % spec.checkpoint.every_steps == 0 or state.step == spec.num_steps:
            saving.save(state, validated)
        # What the stages did meanwhile is no part of the next step.
        running.source.report()
        began_s = time.perf_counter()
    if state.step == spec.num_steps:
        return Outcome(state, saving.finish(state))
    checkpoint = saving.finish(state)
    reason = running.stop.reason()
    if running.parts.ranks.is_first:
        running.stop.take()
    return Outcome(state, checkpoint, reason, running.stop.exit_code)


def train_step(running: Running, state: TrainerState, began_s: float) -> tuple[TrainerState, Step] | None:
    """One optimizer step from `state`; None if a stop was asked for between its batches, with nothing changed.

    `began_s`: when the step before it ended. Raises TrainingFailed before anything changes if the loss or the gradient
    is not finite, and what ended a stage.
    """
    parts, source = running.parts, running.source
    spec, ranks = parts.spec, parts.ranks
    tally = Tally(parts.config.block_size)
    epoch = state.epoch
    taken: list[Callable[[], StepSums]] = []
    for place, number in enumerate(parts.order.batches_of_step(state.batch)):
        if place > 0 and ranks.size == 1 and running.stop.is_asked():
            running.replicas.drop_gradients()
            return None
        batch = source.next()
        assert batch.batch == number, f"wanted batch {number}, the line gave {batch.batch}"
        with source.drafting.busy():
            taken.append(running.replicas.take(parts.order.drafter_of(number), batch))
        tally.see(batch.row, batch.anchors)
        epoch = batch.epoch
    with source.drafting.busy():
        for loss in taken:
            tally.add(loss())
        tally.settle(ranks)
        running.saving.refuse_not_finite("the loss", tally.loss_sum, state)
        running.replicas.gather_gradients()
        grad_norm = parts.optimizer.take_gradients(tally.weight_sum, add=ranks.add_all)
        running.saving.refuse_not_finite("the gradient's norm", grad_norm, state)
        step = state.step + 1
        learning_rate = lr_at(step, spec.num_steps, spec.optim)
        parts.optimizer.step(learning_rate)
        running.replicas.spread_weights()
    queues, stages = source.report()
    batches = state.batch + spec.optim.accumulation
    event = Step(
        step=step,
        num_steps=spec.num_steps,
        batch=batches,
        epoch=epoch,
        loss=tally.loss,
        accuracy=tally.accuracy,
        accuracy_by_slot=tally.accuracy_by_slot,
        learning_rate=learning_rate,
        grad_norm=grad_norm,
        num_anchors=tally.num_anchors,
        num_scored_slots=tally.num_scored,
        context_tokens_per_s=tally.num_tokens / (time.perf_counter() - began_s),
        block_ratio=tally.block_ratio,
        peak_memory_bytes=peak_memory_bytes(parts.device),
        queues=queues,
        stages=stages,
        limiting_stage=limiting(stages),
    )
    return state.model_copy(update={"step": step, "batch": batches, "epoch": epoch, "loss": tally.loss}), event
