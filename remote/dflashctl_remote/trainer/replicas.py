"""One drafter, or M copies of it on devices of their own, that share the batches of a step.

Batch n goes to copy n mod M. Each adds up the gradients of its own batches in rising order; at the step's end they are
added in the order of the copies, so that the sum does not depend on who was faster.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from types import TracebackType
from typing import Self

import torch

from dflashctl_remote.drafter.model import Drafter
from dflashctl_remote.drafter.step import StepSums
from dflashctl_remote.trainer.batch import HiddenBatch

Draft = Callable[[int, HiddenBatch], StepSums]
"""(number of the copy, batch): forward and backward, gradients added up in that copy."""


class Replicas:
    """The first is the one that the optimizer steps and checkpoints hold."""

    def __init__(self, drafters: tuple[Drafter, ...], draft: Draft, *, num_threads: int | None = None) -> None:
        self.drafters = drafters
        self._draft = draft
        self._num_threads = num_threads
        self._threads = [ThreadPoolExecutor(1, f"drafter-{n}") for n in range(len(drafters))] if self.is_many else []
        self._last: dict[int, Future[StepSums]] = {}

    @property
    def is_many(self) -> bool:
        return len(self.drafters) > 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for threads in self._threads:
            threads.shutdown(wait=True, cancel_futures=True)

    def take(self, number: int, batch: HiddenBatch) -> Callable[[], StepSums]:
        """Give a batch to a copy; the answer waits for it. A copy that is still busy is waited for first."""
        if not self.is_many:
            loss = self._draft(0, batch)
            return lambda: loss
        if number in self._last:
            self._last[number].exception()
        future = self._threads[number].submit(self._in_thread, number, batch)
        self._last[number] = future
        return future.result

    def drop_gradients(self) -> None:
        for drafter in self.drafters:
            drafter.zero_grad(set_to_none=True)

    @torch.no_grad()
    def gather_gradients(self) -> None:
        """Into the first, in the order of the copies."""
        first = dict(self.drafters[0].named_parameters())
        for drafter in self.drafters[1:]:
            for name, parameter in drafter.named_parameters():
                if parameter.grad is None:
                    continue
                here = parameter.grad.to(first[name].device)
                parameter.grad = None
                mine = first[name].grad
                first[name].grad = here if mine is None else mine.add_(here)

    @torch.no_grad()
    def spread_weights(self) -> None:
        """From the first to the others."""
        first = dict(self.drafters[0].named_parameters())
        for drafter in self.drafters[1:]:
            for name, parameter in drafter.named_parameters():
                parameter.copy_(first[name])

    def _in_thread(self, number: int, batch: HiddenBatch) -> StepSums:
        if self._num_threads is not None:
            torch.set_num_threads(self._num_threads)
        device = self.drafters[number].fc.weight.device
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            return self._draft(number, batch)
