import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest
from triton.runtime.autotuner import Autotuner, Config

from dflashctl_remote.kernels.autotune.install import install, is_replaced, remove
from dflashctl_remote.kernels.autotune.races import (
    BLOCKED_S,
    BLOCKS,
    LIMIT_S,
    Buffer,
    Launches,
    make_autotuner,
    run_threads,
)
from dflashctl_remote.kernels.autotune.sweeps import SweepWatch
from dflashctl_remote.kernels.autotune.tuner import known_config, shares_arguments


def fastest_is_32(kernel_call, quantiles=None):
    before = dict(LAUNCHED)
    kernel_call()
    block = next(block for block in BLOCKS if LAUNCHED.get(block) != before.get(block))
    return [float(abs(block - 32))] * 3


LAUNCHED: dict[int, int] = {}


class NotingLaunches(Launches):
    def run(self, *args, **kwargs):
        super().run(*args, **kwargs)
        LAUNCHED.update(self.by_block)


def plain_bench(kernel_call, quantiles=None):
    kernel_call()
    return [1.0, 1.0, 1.0]


class CountingLock:
    """Counts how often it was taken."""

    def __init__(self):
        self._lock = threading.RLock()
        self.num_taken = 0

    def __enter__(self):
        self.num_taken += 1
        return self._lock.__enter__()

    def __exit__(self, *error):
        return self._lock.__exit__(*error)


def test_the_fastest_configuration_is_launched_cold_and_warm(patched):
    LAUNCHED.clear()
    autotuner = Autotuner(
        NotingLaunches(),
        ["acc", "N", "BLOCK"],
        [Config({"BLOCK": b}) for b in BLOCKS],
        ["N"],
        None,
        None,
        do_bench=fastest_is_32,
    )
    for _ in range(3):
        autotuner.run(None, 128)
    assert autotuner.fn.by_block == {16: 1, 32: 4, 64: 1}
    assert autotuner.best_config.kwargs == {"BLOCK": 32}


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((None, 128), {}), ((Buffer(), 128), {}), ((Buffer(),), {"N": 128}), ((), {"acc": Buffer(), "N": 128})],
    ids=["no tensor", "tensor", "keyword", "keywords"],
)
def test_what_stock_has_tuned_is_known_to_us(stock, args, kwargs):
    """Holds our key and Triton's together."""
    autotuner = make_autotuner(plain_bench)
    assert known_config(autotuner, args, kwargs) is None
    autotuner.run(*args, **kwargs)
    assert known_config(autotuner, args, kwargs) is autotuner.best_config


def test_another_dtype_is_another_key(patched):
    autotuner = make_autotuner(plain_bench)
    other = Buffer()
    other.dtype = "bfloat16"
    watch = SweepWatch()
    for acc in (Buffer(), other, Buffer()):
        autotuner.run(acc, 128)
    assert len(watch.take()) == 2


def test_different_keys_are_swept_once_each(patched):
    autotuner, watch = make_autotuner(plain_bench), SweepWatch()

    def launch_all(first: int) -> None:
        for turn in range(200):
            autotuner.run(None, (first + turn) % 32)

    assert run_threads({f"{i}": lambda i=i: launch_all(7 * i) for i in range(4)}) == {}
    assert sorted(sweep.key for sweep in watch.take()) == sorted(f"({key},)" for key in range(32))
    assert sum(autotuner.fn.by_block.values()) == 4 * 200 + 3 * 32


def test_a_warm_launch_takes_no_lock(patched):
    autotuner, lock = make_autotuner(plain_bench), CountingLock()
    vars(autotuner)["_dflashctl_lock"] = lock
    autotuner.run(None, 128)
    assert lock.num_taken == 1
    for _ in range(10):
        autotuner.run(None, 128)
    assert lock.num_taken == 1


def test_a_warm_launch_passes_a_sweep_of_the_same_autotuner(patched):
    is_parked, is_launched = threading.Event(), threading.Event()

    def bench(kernel_call, quantiles=None):
        if threading.current_thread().name == "sweeper":
            is_parked.set()
            assert is_launched.wait(LIMIT_S), "the warm launch has waited for the sweep"
        kernel_call()
        return [1.0, 1.0, 1.0]

    def launch_warm():
        is_parked.wait(LIMIT_S)
        autotuner.run(None, 128)
        is_launched.set()

    autotuner = make_autotuner(bench)
    autotuner.run(None, 128)
    assert run_threads({"sweeper": lambda: autotuner.run(None, 256), "launcher": launch_warm}) == {}


def test_two_autotuners_are_not_timed_at_once(patched):
    meeting, met = threading.Barrier(2), []

    def bench(kernel_call, quantiles=None):
        with suppress(threading.BrokenBarrierError):
            met.append(meeting.wait(BLOCKED_S))
        kernel_call()
        return [1.0, 1.0, 1.0]

    one, other = make_autotuner(bench), make_autotuner(bench)
    assert run_threads({"one": lambda: one.run(None, 128), "other": lambda: other.run(None, 128)}) == {}
    assert met == []


def test_a_sweep_that_raises_lets_the_next_thread_sweep(patched):
    num_benches = 0

    def bench(kernel_call, quantiles=None):
        nonlocal num_benches
        num_benches += 1
        if num_benches == 2:
            raise MemoryError("while it was timed")
        kernel_call()
        return [1.0, 1.0, 1.0]

    autotuner, watch = make_autotuner(bench), SweepWatch()
    launch = {"launch": lambda: autotuner.run(None, 128)}
    assert run_threads(launch) == {"launch": "MemoryError: while it was timed"}
    assert watch.take() == ()
    assert run_threads(launch) == {}
    assert num_benches == 2 + 3


def test_a_sweep_that_raises_keeps_no_tensor(patched):
    def bench(kernel_call, quantiles=None):
        raise MemoryError

    autotuner = make_autotuner(bench)
    with pytest.raises(MemoryError):
        autotuner.run(Buffer(), 128)
    assert "nargs" not in vars(autotuner)


def test_an_autotuner_made_before_the_patch_is_safe(stock):
    autotuner = make_autotuner(plain_bench)
    autotuner.run(None, 1)
    install()
    watch = SweepWatch()
    launches = {f"{i}": lambda: [autotuner.run(None, key) for key in range(8)] for i in range(4)}
    assert run_threads(launches) == {}
    assert len(watch.take()) == 7, "key 1 was known from before"


def test_a_subclass_keeps_its_own_run(patched):
    class Careful(Autotuner):
        num_runs = 0

        def run(self, *args, **kwargs):
            type(self).num_runs += 1
            return super().run(*args, **kwargs)

    autotuner, watch = make_autotuner(plain_bench, autotuner_class=Careful), SweepWatch()
    for _ in range(3):
        autotuner.run(None, 128)
    assert Careful.num_runs == 3
    assert len(watch.take()) == 1


def test_a_hook_may_launch_another_cold_kernel(patched):
    inner = make_autotuner(plain_bench)
    outer = make_autotuner(plain_bench, pre_hook=lambda kwargs, reset_only=False: inner.run(None, kwargs["N"]))
    watch = SweepWatch()
    assert run_threads({f"{i}": lambda: outer.run(None, 128) for i in range(4)}) == {}
    assert len(watch.take()) == 2


def test_a_hook_may_launch_its_own_kernel_with_another_cold_key(patched):
    """Stock loses the outer call's arguments here, even with a single thread."""

    def pre_hook(kwargs, reset_only=False):
        if kwargs["N"] == 128:
            autotuner.run(None, 256)

    autotuner = make_autotuner(plain_bench, pre_hook=pre_hook)
    watch = SweepWatch()
    autotuner.run(None, 128)
    assert [sweep.key for sweep in watch.take()] == ["(256,)", "(128,)"]


def test_the_hook_of_a_configuration_gets_the_arguments_of_its_own_launch(patched):
    seen = []
    configs = [Config({"BLOCK": 16}, pre_hook=lambda kwargs: seen.append((kwargs["N"], kwargs["BLOCK"])))]
    autotuner = Autotuner(Launches(), ["acc", "N", "BLOCK"], configs, ["N"], None, None, do_bench=plain_bench)
    autotuner.run(None, 128)
    autotuner.run(None, N=256)
    assert seen == [(128, 16), (256, 16)]


def test_compiling_ahead_goes_through_every_configuration_and_leaves_no_arguments(patched):
    autotuner = make_autotuner(plain_bench)
    assert autotuner.warmup(Buffer(), 128) == [None] * 3
    assert "nargs" not in vars(autotuner)


def test_installing_twice_changes_nothing(patched):
    run = Autotuner.run
    assert install() == patched
    assert Autotuner.run is run


def test_removing_puts_stock_back(stock):
    run, warmup = Autotuner.run, Autotuner.warmup
    install()
    assert Autotuner.run is not run
    remove()
    assert (Autotuner.run, Autotuner.warmup) == (run, warmup)
    assert not is_replaced(Autotuner, "run")


def test_an_autotuner_that_keeps_no_arguments_needs_no_patch():
    def run(self, *args, **kwargs):
        arguments = dict(zip(self.arg_names, args, strict=False))
        return self.fn.run(**arguments, **kwargs)

    assert shares_arguments(Autotuner)
    assert not shares_arguments(SimpleNamespace(run=run))
