"""Checkpoints written beside training: the state is copied to host memory at once, and files are made by a thread.

One at a time: who asks for the next while one is being written waits. What the writer meets is raised by whoever looks
next; at the latest by `finish`.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dflashctl_remote.spec.events import CheckpointSaved
from dflashctl_remote.trainer.stop import WRITER_THREAD


@dataclass(frozen=True)
class Snapshot:
    """Tensors in host memory that training does not change any more."""

    drafter: dict[str, Tensor]
    optimizer: dict[str, Tensor]


Write = Callable[[Snapshot], CheckpointSaved]


class HostCopies:
    """Keeps its (pinned) memory from one snapshot to the next: 24 GB are not allocated anew every time."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def take(self, drafter: dict[str, Tensor], optimizer: dict[str, Tensor]) -> Snapshot:
        """Copy; when it returns the originals may change. The snapshot is good until the next one is taken."""
        mine = self._copied("drafter/", drafter), self._copied("optimizer/", optimizer)
        for device in {t.device for t in (*drafter.values(), *optimizer.values()) if t.is_cuda}:
            torch.cuda.synchronize(device)
        return Snapshot(*mine)

    def _copied(self, prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: self._copy(prefix + name, tensor.detach()) for name, tensor in tensors.items()}

    def _copy(self, key: str, tensor: Tensor) -> Tensor:
        kept = self._kept.get(key)
        if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
            kept = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._kept[key] = kept
        return kept.copy_(tensor, non_blocking=True)


class Writer:
    """Waits at an event, not at the thread: a `Thread.join` that Ctrl-C interrupts takes its thread for ended."""

    def __init__(self) -> None:
        self._is_done: threading.Event | None = None
        self._thread: threading.Thread | None = None
        self._saved: CheckpointSaved | None = None
        self._error: BaseException | None = None

    def begin(self, snapshot: Snapshot, write: Write) -> None:
        """Start writing; nothing may be under way."""
        assert self._is_done is None
        self._is_done = is_done = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(snapshot, write, is_done), name=WRITER_THREAD, daemon=True
        )
        self._thread.start()

    def poll(self) -> CheckpointSaved | None:
        """What has been written since the last look. Raises what the writer met."""
        return None if self._is_done is None or not self._is_done.is_set() else self.finish()

    def finish(self) -> CheckpointSaved | None:
        """Wait for what is under way. Raises what the writer met."""
        if self._is_done is None or self._thread is None:
            return None
        while not self._is_done.wait(timeout=0.5):
            # In slices: a wait without a limit would hold back Ctrl-C.
            pass
        self._thread.join()
        self._is_done = self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
        saved, self._saved = self._saved, None
        return saved

    def wait(self, seconds_s: float) -> None:
        """For a while, whatever comes of it."""
        if self._is_done is not None:
            self._is_done.wait(timeout=seconds_s)

    def _run(self, snapshot: Snapshot, write: Write, is_done: threading.Event) -> None:
        try:
            self._saved = write(snapshot)
        except BaseException as error:  # noqa: BLE001 - raised by finish
            self._error = error
        finally:
            is_done.set()
