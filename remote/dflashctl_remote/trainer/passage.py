"""How hidden states get from the device of a target to the device of a drafter.

On a CPU they are handed over. On one GPU the drafter's stream waits for the target's, on the device. Between GPUs they
go through pinned memory of the host, copied by streams of their own, so that neither side computes less meanwhile.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypedDict

import torch
from torch import Tensor

from dflashctl_remote.drafter.scored import Scored
from dflashctl_remote.trainer.queues import BoundedQueue


class Carried(TypedDict):
    """The fields of a HiddenBatch that hold tensors."""

    taps_TF: Tensor
    scored: Scored


class Passage(Protocol):
    def sending(self, device: torch.device) -> AbstractContextManager[Any]:
        """Surrounds all that a target stage does, in its thread."""
        ...

    def send(self, place: int, batch: int, taps_TF: Tensor, scored: Scored) -> Carried:
        """In the target's thread, once the batch is computed or on its way. Raises Closed."""
        ...

    def receive(self, place: int, batch: int, taps_TF: Tensor, scored: Scored) -> Carried:
        """In the thread that hands batches to the drafters: the same, where the batch's drafter can read it."""
        ...

    def close(self) -> None: ...


class Hand:
    """All on one CPU."""

    def sending(self, device: torch.device) -> AbstractContextManager[Any]:
        return nullcontext()

    def send(self, place: int, batch: int, taps_TF: Tensor, scored: Scored) -> Carried:
        return {"taps_TF": taps_TF, "scored": scored}

    receive = send

    def close(self) -> None:
        """There is nothing."""


class SameGpu:
    """Target stages compute on streams of their own; the drafter's stream waits for the event that each left."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._ready: dict[int, torch.cuda.Event] = {}

    def sending(self, device: torch.device) -> AbstractContextManager[Any]:
        torch.cuda.set_device(device)
        return torch.cuda.stream(torch.cuda.Stream(device))

    def send(self, place: int, batch: int, taps_TF: Tensor, scored: Scored) -> Carried:
        ready = torch.cuda.Event()
        ready.record(torch.cuda.current_stream(self._device))
        self._ready[place] = ready
        # Work that is only queued would make the buffer's bound mean nothing.
        ready.synchronize()
        return {"taps_TF": taps_TF, "scored": scored}

    def receive(self, place: int, batch: int, taps_TF: Tensor, scored: Scored) -> Carried:
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(self._ready.pop(place))
        # Made on the target's stream, used on this one: not to be given out again before that is over.
        for tensor in (taps_TF, *_tensors(scored)):
            tensor.record_stream(stream)
        return {"taps_TF": taps_TF, "scored": scored}

    def close(self) -> None:
        self._ready.clear()


@dataclass(frozen=True)
class _Slot:
    """Pinned memory for the taps of one batch."""

    taps_TF: Tensor


class ThroughHost:
    """Between GPUs. At most `num_slots` batches are in pinned memory; who needs another waits."""

    def __init__(
        self, drafter_of: dict[int, torch.device], *, num_slots: int, num_tokens: int, width: int, dtype: torch.dtype
    ) -> None:
        """`drafter_of`: number of a batch's drafter, by batch modulo their count, to its device."""
        self._drafter_of = drafter_of
        self._free: BoundedQueue[_Slot] = BoundedQueue(num_slots)
        for _ in range(num_slots):
            self._free.put(_Slot(torch.empty((num_tokens, width), dtype=dtype, pin_memory=True)))
        self._slots: dict[int, _Slot] = {}
        self._sent: dict[int, torch.cuda.Event] = {}
        self._copying: list[tuple[torch.cuda.Event, _Slot]] = []
        self._streams: dict[tuple[int, str], torch.cuda.Stream] = {}
        self._lock = threading.Lock()

    @contextmanager
    def sending(self, device: torch.device) -> Iterator[None]:
        torch.cuda.set_device(device)
        with torch.cuda.stream(torch.cuda.Stream(device)):
            yield

    def send(self, place: int, batch: int, taps_TF: Tensor, scored: Scored) -> Carried:
        slot = self._free.get()
        computed = torch.cuda.current_stream(taps_TF.device)
        copying = self._stream(taps_TF.device, "out")
        copying.wait_stream(computed)
        with torch.cuda.stream(copying):
            slot.taps_TF.copy_(taps_TF, non_blocking=True)
            # Small, and read by the host of no one: pinned by torch itself.
            on_host = scored.to(torch.device("cpu"))
            sent = torch.cuda.Event()
            sent.record(copying)
        for tensor in (taps_TF, *_tensors(scored)):
            tensor.record_stream(copying)
        sent.synchronize()
        with self._lock:
            self._slots[place], self._sent[place] = slot, sent
        return {"taps_TF": slot.taps_TF, "scored": on_host}

    def receive(self, place: int, batch: int, taps_TF: Tensor, scored: Scored) -> Carried:
        device = self._drafter_of[batch % len(self._drafter_of)]
        copying = self._stream(device, "in")
        with self._lock:
            slot, _ = self._slots.pop(place), self._sent.pop(place)
        with torch.cuda.device(device), torch.cuda.stream(copying):
            here_TF = taps_TF.to(device, non_blocking=True)
            scored_here = scored.to(device)
            copied = torch.cuda.Event()
            copied.record(copying)
        using = torch.cuda.current_stream(device)
        using.wait_event(copied)
        for tensor in (here_TF, *_tensors(scored_here)):
            tensor.record_stream(using)
        self._copying.append((copied, slot))
        self._give_back()
        return {"taps_TF": here_TF, "scored": scored_here}

    def close(self) -> None:
        self._free.close()

    def _give_back(self) -> None:
        """Slots whose copy is over; all but the newest are waited for, so that one is always on its way back."""
        while self._copying and (len(self._copying) > 1 or self._copying[0][0].query()):
            copied, slot = self._copying.pop(0)
            copied.synchronize()
            self._free.put(slot)

    def _stream(self, device: torch.device, way: str) -> torch.cuda.Stream:
        key = (device.index or 0, way)
        with self._lock:
            if key not in self._streams:
                self._streams[key] = torch.cuda.Stream(device)
            return self._streams[key]


def _tensors(scored: Scored) -> list[Tensor]:
    values = [getattr(scored, field.name) for field in fields(scored)]
    return [value for value in values if isinstance(value, Tensor)]
