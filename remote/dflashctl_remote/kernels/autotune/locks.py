"""Who may tune when: one sweep at a time on a GPU, and one thread at a time in the shared fields of an autotuner."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

_LOCK = "_dflashctl_lock"

_guard = threading.Lock()
_tuning: dict[int, threading.RLock] = {}
_thread = threading.local()


@contextmanager
def sweeping(autotuner: Any) -> Iterator[None]:
    """Alone on this thread's GPU, then alone in `autotuner`; always in this order. Re-entrant.

    A sweep inside a sweep (a hook that launches a kernel) stays under the tuning lock that the thread has, even if
    it changed its device: so no thread ever waits for a second one, and two threads can't wait for each other there.
    """
    with _tuning_lock(), lock_of(autotuner):
        yield


def lock_of(instance: Any) -> AbstractContextManager[bool]:
    """The lock of one object, made at first need, so that objects older than the patch have one too."""
    lock: AbstractContextManager[bool] = vars(instance).setdefault(_LOCK, threading.RLock())
    return lock


@contextmanager
def _tuning_lock() -> Iterator[None]:
    if getattr(_thread, "is_tuning", False):
        yield
        return
    device = torch.cuda.current_device() if torch.cuda.is_available() else -1
    with _guard:
        lock = _tuning.setdefault(device, threading.RLock())
    with lock:
        _thread.is_tuning = True
        try:
            yield
        finally:
            _thread.is_tuning = False
