"""What in flash-linear-attention isn't safe for threads besides Triton: its autotuner's look-up of shipped
configurations, and `tensor_cache`, which iterates over a deque to which other threads append.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

from dflashctl_remote.kernels.autotune.locks import sweeping


class PerThread:
    """Stands in for the bounded deque of a `tensor_cache`: each thread has its own entries, gone with the thread.

    No lock, and no thread is handed a tensor that another one's stream may still be computing, nor loses its entries
    to the misses of others.
    """

    def __init__(self, maxlen: int | None) -> None:
        self._maxlen = maxlen
        self._local = threading.local()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries())

    def append(self, entry: Any) -> None:
        self._entries().append(entry)

    def _entries(self) -> deque[Any]:
        entries: deque[Any] | None = getattr(self._local, "entries", None)
        if entries is None:
            entries = self._local.entries = deque(maxlen=self._maxlen)
        return entries


def has_shared_entries(tensor_cache: Callable[..., Any]) -> bool:
    """Whether what `tensor_cache` decorates keeps its entries in one deque for all threads."""
    return _deque_cell(tensor_cache(_probe)) is not None


def safe_tensor_cache(stock: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(stock)
    def tensor_cache(fn: Callable[..., Any]) -> Callable[..., Any]:
        decorated: Callable[..., Any] = stock(fn)
        separate(decorated)
        return decorated

    return tensor_cache


def separate(decorated: Callable[..., Any]) -> tuple[CellType, deque[Any]] | None:
    """Give a function that is already decorated entries by thread; returns what stood where, or None."""
    cell = _deque_cell(decorated)
    if cell is None:
        return None
    shared: deque[Any] = cell.cell_contents
    cell.cell_contents = PerThread(shared.maxlen)
    return cell, shared


def decorated_functions(modules: Iterable[ModuleType], stock: Callable[..., Any]) -> list[FunctionType]:
    """The functions in `modules` that `stock` has decorated, also below other decorators; each once."""
    code: CodeType = stock(_probe).__code__
    found: dict[int, FunctionType] = {}
    for module in modules:
        for value in list(vars(module).values()):
            layer = value
            while isinstance(layer, FunctionType):
                if layer.__code__ is code:
                    found[id(layer)] = layer
                layer = getattr(layer, "__wrapped__", None)
    return list(found.values())


def safe_config_load(stock_load: Callable[..., None]) -> Callable[..., None]:
    """For CachedAutotuner.maybe_load_cached_config: looks again, alone, before it writes or removes a configuration."""

    @wraps(stock_load)
    def maybe_load_cached_config(self: Any, key: Any, nargs: dict[str, Any], runtime_kwargs: dict[str, Any]) -> None:
        with sweeping(self):
            if self.should_check_fla_cache(key):
                stock_load(self, key=key, nargs=nargs, runtime_kwargs=runtime_kwargs)

    return maybe_load_cached_config


def _probe() -> None:
    return None


def _deque_cell(decorated: Callable[..., Any]) -> CellType | None:
    cells: tuple[CellType, ...] = getattr(decorated, "__closure__", None) or ()
    for cell in cells:
        if type(cell.cell_contents) is deque:
            return cell
    return None
