"""Puts the safe members in place of Triton's and fla's, or says why not. Idempotent; classes are changed, so objects
made before are covered. Called again after fla was imported, it adds what it then finds.
"""

import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from types import ModuleType
from typing import Any, Literal

from dflashctl_remote.kernels.autotune import fla_cache, tuner
from dflashctl_remote.kernels.autotune.sweeps import add_sweep

State = Literal["patched", "not needed", "not loaded"]

_lock = threading.Lock()
_undo: list[Callable[[], None]] = []
_replaced: set[tuple[Any, str]] = set()


@dataclass(frozen=True)
class Safety:
    """What became of each place that isn't safe for threads in Triton 3.4-3.9 and fla 0.6."""

    autotuner: State
    """`not needed`: upstream no longer has the shape that is unsafe."""
    fla_autotuner: State
    """`not loaded`: fla isn't imported yet; install again once it is."""
    fla_tensor_cache: State

    def __str__(self) -> str:
        return ", ".join(f"{place.replace('_', ' ')} {state}" for place, state in asdict(self).items())


def install() -> Safety:
    """Make autotuners and fla's caches safe for threads, in this process.

    Without triton it does nothing. fla is never imported here, only changed where it is already.
    """
    with _lock:
        if "triton" not in sys.modules and importlib.util.find_spec("triton") is None:
            return Safety("not loaded", "not loaded", "not loaded")
        autotuner_class = importlib.import_module("triton.runtime.autotuner").Autotuner
        return Safety(
            _patch_autotuner(autotuner_class),
            _patch_fla_autotuner(sys.modules.get("fla.ops.utils.cache")),
            _patch_tensor_cache([module for name, module in list(sys.modules.items()) if _is_in_fla(name)]),
        )


def remove() -> None:
    """Put everything back as it was, for comparisons with the stock behaviour; no thread may launch meanwhile."""
    with _lock:
        while _undo:
            _undo.pop()()


def is_replaced(owner: Any, name: str) -> bool:
    """Whether this member of a class or module is ours at the moment."""
    return (owner, name) in _replaced


def _patch_autotuner(autotuner_class: Any) -> State:
    if is_replaced(autotuner_class, "run"):
        return "patched"
    if not tuner.shares_arguments(autotuner_class):
        _listen()
        return "not needed"
    _replace(autotuner_class, "run", tuner.safe_run(autotuner_class.run))
    _replace(autotuner_class, "warmup", tuner.safe_warmup(autotuner_class.warmup))
    return "patched"


def _patch_fla_autotuner(module: ModuleType | None) -> State:
    cached_class = getattr(module, "CachedAutotuner", None)
    if cached_class is None:
        return "not loaded"
    if not {"maybe_load_cached_config", "should_check_fla_cache"} <= vars(cached_class).keys():
        return "not needed"
    if not is_replaced(cached_class, "maybe_load_cached_config"):
        safe = fla_cache.safe_config_load(cached_class.maybe_load_cached_config)
        _replace(cached_class, "maybe_load_cached_config", safe)
    return "patched"


def _patch_tensor_cache(modules: list[ModuleType]) -> State:
    """In `modules`, all of fla that is imported: both what is decorated by now and what will be."""
    found = next((vars(module)["tensor_cache"] for module in modules if "tensor_cache" in vars(module)), None)
    if found is None:
        return "not loaded"
    stock = getattr(found, "stock", found)
    if not fla_cache.has_shared_entries(stock):
        return "not needed"
    safe: Any = fla_cache.safe_tensor_cache(stock)
    safe.stock = stock
    for module in modules:
        if vars(module).get("tensor_cache") is stock:
            _replace(module, "tensor_cache", safe)
    for function in fla_cache.decorated_functions(modules, stock):
        separated = fla_cache.separate(function)
        if separated is not None:
            _undo.append(partial(setattr, separated[0], "cell_contents", separated[1]))
    return "patched"


def _listen() -> None:
    """Sweeps of an autotuner that needs no patch are told by Triton itself, where it has a listener."""
    knobs = importlib.import_module("triton.knobs").autotuning
    before = getattr(knobs, "listener", None)
    if not isinstance(before, _Listener):
        knobs.listener = _Listener(before)
        _undo.append(partial(setattr, knobs, "listener", before))


@dataclass(frozen=True)
class _Listener:
    before: Callable[..., None] | None

    def __call__(self, **told: Any) -> None:
        add_sweep(told["fn"].__name__, told["key"], told["duration"] or 0.0)
        if self.before is not None:
            self.before(**told)


def _replace(owner: Any, name: str, member: object) -> None:
    stock = vars(owner)[name]
    setattr(owner, name, member)
    _replaced.add((owner, name))

    def undo() -> None:
        setattr(owner, name, stock)
        _replaced.discard((owner, name))

    _undo.append(undo)


def _is_in_fla(module_name: str) -> bool:
    return module_name == "fla" or module_name.startswith("fla.")
