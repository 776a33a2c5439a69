"""When and what of a run is saved: a copy at once, files beside training, and what is not finite never."""

import contextlib
import math
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dflashctl_remote.drafter.checkpoint import Weights, weights_of
from dflashctl_remote.spec.errors import BundleError, TrainingFailed
from dflashctl_remote.spec.events import CheckpointSaved, Validated
from dflashctl_remote.spec.validation import about_tau
from dflashctl_remote.trainer.checkpoint import TrainerState, last_good, prune, save_checkpoint
from dflashctl_remote.trainer.setup import Parts
from dflashctl_remote.trainer.sinks import Emitter
from dflashctl_remote.trainer.writer import HostCopies, Snapshot, Writer

ABORT_S = 5.0
"""A second Ctrl-C waits so long for a checkpoint that is being written."""


class Saving:
    """In the first process of a run; the others save nothing, and wait for nothing."""

    def __init__(self, parts: Parts, events: Emitter) -> None:
        self._parts = parts
        self._events = events
        self._copies = HostCopies()
        self._writer = Writer()
        self._saved_step: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            self._writer.wait(ABORT_S)
            return
        # What went wrong here is less than what ends the run.
        with contextlib.suppress(Exception) if error is not None else contextlib.nullcontext():
            self.tell(wait=True)

    def begin_with(self, state: TrainerState) -> None:
        """A new run saves the weights before training: `eval` compares with them."""
        if state.step == 0:
            self.save(state)
            self.tell(wait=True)
        self._saved_step = state.step

    def save(self, state: TrainerState, validated: Validated | None = None) -> None:
        """Copy the state and have it written, with what was measured of it, and older ones pruned; waits for the one
        before it.

        Raises TrainingFailed if a weight is not finite: such a checkpoint must never become the last good one.
        """
        self._saved_step = state.step
        if not self._parts.ranks.is_first:
            return
        self.tell(wait=True)
        drafter = self._parts.drafters[0]
        for name, parameter in drafter.named_parameters():
            if not parameter.isfinite().all():
                raise TrainingFailed(
                    f"{name} is not finite after step {state.step}, nothing was saved; "
                    f"{last_good(self._parts.checkpoints)}",
                    hint="lower optim.learning_rate in a new run",
                )
        weights = weights_of(drafter)
        snapshot = self._copies.take(weights.tensors, self._parts.optimizer.state_dict())
        began_s = time.perf_counter()
        self._writer.begin(snapshot, lambda taken: self._write(taken, weights, state, validated, began_s))

    def tell(self, *, wait: bool = False) -> None:
        """Say what has been written since. Raises what the writer met."""
        saved = self._writer.finish() if wait else self._writer.poll()
        if saved is not None:
            self._events.emit(saved)

    def finish(self, state: TrainerState) -> Path:
        """The checkpoint of this state, on the disk."""
        if self._saved_step != state.step:
            self.save(state)
        self.tell(wait=True)
        self._parts.ranks.wait()
        return self._parts.checkpoints / f"step-{state.step:08d}"

    def save_the_last(self, state: TrainerState) -> str:
        """Of a run that ends badly, its last complete step; half a sentence about what there is."""
        self._parts.optimizer.drop_gradients()
        with contextlib.suppress(BundleError, OSError, RuntimeError):
            if self._saved_step != state.step:
                self.save(state)
            self.tell(wait=True)
        return last_good(self._parts.checkpoints)

    def refuse_not_finite(self, what: str, value: float, state: TrainerState) -> None:
        """Raises TrainingFailed."""
        if math.isfinite(value):
            return
        self.tell(wait=True)
        raise TrainingFailed(
            f"{what} is {value} in step {state.step + 1} (batches from {state.batch}), nothing was changed; "
            f"{last_good(self._parts.checkpoints)}",
            hint="look at these rows with `dflashctl data inspect`, or lower optim.learning_rate in a new run",
        )

    def _write(
        self, taken: Snapshot, weights: Weights, state: TrainerState, validated: Validated | None, began_s: float
    ) -> CheckpointSaved:
        """In the writer's thread."""
        record = self._parts.record
        spec = record.train
        path = save_checkpoint(
            self._parts.checkpoints,
            Weights(weights.config, taken.drafter),
            taken.optimizer,
            state,
            bundle_sha=record.bundle_sha,
            about={
                "run_id": record.run_id,
                "step": state.step,
                "num_steps": spec.num_steps,
                "batch": state.batch,
                "epoch": state.epoch,
                "loss": state.loss,
                "target": spec.target,
                "dataset": spec.dataset,
                "block_size": weights.config.block_size,
                "warm_start_sha256": state.warm_start_sha256,
                **_measured(validated),
            },
        )
        size_bytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        prune(self._parts.checkpoints, spec.checkpoint)
        return CheckpointSaved(
            step=state.step, path=str(path), size_bytes=size_bytes, seconds_s=time.perf_counter() - began_s
        )


def _measured(validated: Validated | None) -> dict[str, Any]:
    if validated is None:
        return {}
    return about_tau(validated.tau, validated.tau_low, validated.tau_high, validated.num_prompts)
