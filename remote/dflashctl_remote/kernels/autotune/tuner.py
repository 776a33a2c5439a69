"""The replacements for two methods of triton.runtime.autotuner.Autotuner, which share `self.nargs` between threads."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from dflashctl_remote.kernels.autotune.locks import sweeping
from dflashctl_remote.kernels.autotune.sweeps import recorded

_SHARED_FIELDS = ("nargs", "restore_copies")


def shares_arguments(autotuner_class: Any) -> bool:
    """Whether `run` still keeps a call's arguments in a field of the object, which is what makes it unsafe."""
    return "nargs" in inspect.unwrap(autotuner_class.run).__code__.co_names


def safe_run(stock_run: Callable[..., Any]) -> Callable[..., Any]:
    """Known keys launch without a lock and without the shared fields; `stock_run` sees cold keys, one at a time."""

    @wraps(stock_run)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = known_config(self, args, kwargs)
        if config is None:
            with sweeping(self):
                config = known_config(self, args, kwargs)
                if config is None:
                    with _fields_kept(self), recorded(self):
                        return stock_run(self, *args, **kwargs)
        self.best_config = config
        if config.pre_hook is not None:
            config.pre_hook({**dict(zip(self.arg_names, args, strict=False)), **kwargs, **config.all_kwargs()})
        return self.fn.run(*args, **kwargs, **config.all_kwargs())

    return run


def safe_warmup(stock_warmup: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles every configuration, through the same shared fields: alone, as a sweep is."""

    @wraps(stock_warmup)
    def warmup(self: Any, *args: Any, **kwargs: Any) -> Any:
        with sweeping(self), _fields_kept(self):
            return stock_warmup(self, *args, **kwargs)

    return warmup


def known_config(autotuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any | None:
    """The configuration already chosen for these arguments, or None. Takes no lock and reads the cache once.

    The key follows Triton's rule (3.4 to 3.9). Should a later one differ, nothing is found here, and every launch goes
    to `stock_run` under the lock: slower, not wrong.
    """
    if len(autotuner.configs) == 1:
        return autotuner.configs[0]
    names = autotuner.arg_names
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    given = {name: value for name, value in given.items() if name in names}
    key = [given[name] for name in autotuner.keys if name in given]
    key += [str(value.dtype) for value in given.values() if hasattr(value, "dtype")]
    return autotuner.cache.get(tuple(key))


@contextmanager
def _fields_kept(autotuner: Any) -> Iterator[None]:
    """Gives an outer sweep of the same autotuner its fields back, and lets go of the tensors of one that raised."""
    before = {name: vars(autotuner)[name] for name in _SHARED_FIELDS if name in vars(autotuner)}
    try:
        yield
    finally:
        for name in _SHARED_FIELDS:
            vars(autotuner).pop(name, None)
        vars(autotuner).update(before)
