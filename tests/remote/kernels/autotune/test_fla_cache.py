"""fla's caches, with packages that have its shape; fla itself is for the GPU (test_on_gpu.py)."""

import gc
import sys
import weakref
from functools import wraps
from types import ModuleType

import pytest
from triton.runtime.autotuner import Autotuner, Config

from dflashctl_remote.kernels.autotune.fla_cache import PerThread, has_shared_entries, safe_tensor_cache
from dflashctl_remote.kernels.autotune.install import install, remove
from dflashctl_remote.kernels.autotune.races import (
    append_while_iterating,
    identity_cache,
    make_autotuner,
    run_threads,
)


@pytest.fixture
def fla(stock, monkeypatch):
    """The part of fla that decorates and is decorated, imported before the patch."""
    home, index = ModuleType("fla.utils.decorators"), ModuleType("fla.ops.utils.index")
    home.tensor_cache = index.tensor_cache = identity_cache
    index.prepare = identity_cache(lambda *args, **named: object())
    inner = identity_cache(lambda *args, **named: object())

    @wraps(inner)
    def below_another_decorator(*args):
        return inner(*args)

    index.guarded = below_another_decorator
    for module in (home, index):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return index


def test_a_decorated_function_that_was_there_before_is_safe(fla):
    shared = fla.prepare
    assert append_while_iterating(lambda fn: shared).errors != {}
    assert install().fla_tensor_cache == "patched"
    assert append_while_iterating(lambda fn: shared).errors == {}


def test_a_function_decorated_later_is_safe(fla):
    install()
    assert append_while_iterating(fla.tensor_cache).errors == {}


def test_a_function_below_another_decorator_is_found(fla):
    offsets, seen = object(), []
    install()
    run_threads({name: lambda: seen.append(fla.guarded(offsets)) for name in ("a", "b")})
    assert seen[0] is not seen[1]


def test_a_thread_still_hits_its_own_entries_and_no_others(fla):
    install()
    offsets, seen = object(), {}
    run_threads(
        {name: lambda name=name: seen.update({name: {fla.prepare(offsets) for _ in range(3)}}) for name in "ab"}
    )
    assert len(seen["a"]) == len(seen["b"]) == 1
    assert seen["a"] != seen["b"]


def test_entries_stay_bounded(fla):
    install()
    offsets = [object() for _ in range(5)]
    first = fla.prepare(offsets[0])
    assert fla.prepare(offsets[0]) is first
    for each in offsets[1:]:
        fla.prepare(each)
    assert fla.prepare(offsets[0]) is not first


def test_entries_go_with_their_thread():
    class Result:
        pass

    entries, born = PerThread(4), []

    def body():
        result = Result()
        born.append(weakref.ref(result))
        entries.append(result)

    run_threads({"worker": body})
    gc.collect()
    assert born[0]() is None


def test_removing_puts_the_shared_entries_back(fla):
    install()
    remove()
    assert has_shared_entries(fla.tensor_cache)
    assert append_while_iterating(lambda fn: fla.prepare).errors != {}


def test_installing_again_covers_what_was_imported_since(fla, monkeypatch):
    install()
    late = ModuleType("fla.modules.late")
    late.prepare = identity_cache(lambda *args, **named: object())
    monkeypatch.setitem(sys.modules, "fla.modules.late", late)
    install()
    assert append_while_iterating(lambda fn: late.prepare).errors == {}


def test_a_cache_without_a_shared_deque_needs_no_patch():
    assert has_shared_entries(identity_cache)
    assert not has_shared_entries(safe_tensor_cache(identity_cache))
    assert not has_shared_entries(lambda fn: fn)


def test_without_fla_nothing_is_imported_for_it(patched):
    assert patched.fla_tensor_cache == patched.fla_autotuner == "not loaded"
    assert "fla" not in sys.modules


class CachedAutotuner(Autotuner):
    """Has the shape of fla 0.6.0's: looks for a shipped configuration before it tunes."""

    def should_check_fla_cache(self, key):
        return key not in self.cache

    def run(self, *args, **kwargs):
        key = (args[1],)
        if self.should_check_fla_cache(key):
            self.maybe_load_cached_config(key=key, nargs={}, runtime_kwargs=kwargs)
        return super().run(*args, **kwargs)

    def maybe_load_cached_config(self, key, nargs, runtime_kwargs):
        self.lookups.append(key)
        if self.shipped is None:
            # A shipped configuration that was pruned.
            self.cache.pop(key, None)
        else:
            self.cache[key] = self.shipped


def cached_autotuner(monkeypatch, bench, shipped=None):
    class Own(CachedAutotuner):
        pass

    # Members of its own, as fla's class has them.
    Own.maybe_load_cached_config = CachedAutotuner.maybe_load_cached_config
    Own.should_check_fla_cache = CachedAutotuner.should_check_fla_cache
    module = ModuleType("fla.ops.utils.cache")
    module.CachedAutotuner = Own
    monkeypatch.setitem(sys.modules, "fla.ops.utils.cache", module)
    assert install().fla_autotuner == "patched"
    autotuner = make_autotuner(bench, autotuner_class=Own)
    autotuner.lookups, autotuner.shipped = [], shipped
    return autotuner


def test_flas_autotuner_tunes_a_cold_key_once_for_all_threads(stock, monkeypatch):
    benches = []

    def bench(kernel_call, quantiles=None):
        benches.append(1)
        kernel_call()
        return [1.0, 1.0, 1.0]

    autotuner = cached_autotuner(monkeypatch, bench)
    launches = {f"{i}": lambda: [autotuner.run(None, key) for key in range(50)] for i in range(4)}
    assert run_threads(launches) == {}
    assert len(benches) == 3 * 50


def test_flas_autotuner_takes_a_shipped_configuration_and_tunes_nothing(stock, monkeypatch):
    def bench(kernel_call, quantiles=None):
        raise AssertionError("a shipped configuration is not tuned")

    autotuner = cached_autotuner(monkeypatch, bench, shipped=Config({"BLOCK": 64}))
    assert run_threads({f"{i}": lambda: autotuner.run(None, 128) for i in range(4)}) == {}
    assert autotuner.lookups == [(128,)]
    assert autotuner.fn.by_block == {64: 4}
