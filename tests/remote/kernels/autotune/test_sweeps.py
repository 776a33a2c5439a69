import pytest
from triton import knobs
from triton.runtime.autotuner import Autotuner

from dflashctl_remote.kernels.autotune.install import install
from dflashctl_remote.kernels.autotune.races import make_autotuner, run_threads
from dflashctl_remote.kernels.autotune.sweeps import SweepWatch, warm_up


def bench(kernel_call, quantiles=None):
    kernel_call()
    return [1.0, 1.0, 1.0]


def test_a_warm_up_tells_what_it_tuned_and_leaves_nothing_to_tune(patched):
    autotuner = make_autotuner(bench)
    sweeps = warm_up(
        [lambda: autotuner.run(None, 128), lambda: autotuner.run(None, 256), lambda: autotuner.run(None, 128)]
    )
    assert [(sweep.kernel, sweep.key, sweep.thread) for sweep in sweeps] == [
        ("_kernel", "(128,)", "MainThread"),
        ("_kernel", "(256,)", "MainThread"),
    ]
    watch = SweepWatch()
    assert run_threads({f"{i}": lambda: autotuner.run(None, 256) for i in range(4)}) == {}
    assert watch.take() == ()


def test_a_watch_tells_of_a_key_that_the_warm_up_missed_once(patched):
    autotuner = make_autotuner(bench)
    warm_up([lambda: autotuner.run(None, 128)])
    watch = SweepWatch()
    assert run_threads({"worker": lambda: autotuner.run(None, 512)}) == {}
    (sweep,) = watch.take()
    assert (sweep.key, sweep.thread) == ("(512,)", "worker")
    assert str(sweep).startswith("_kernel for (512,) in ")
    assert watch.take() == ()


@pytest.mark.skipif(not hasattr(knobs.autotuning, "listener"), reason="this triton has no listener")
def test_an_autotuner_that_needs_no_patch_tells_its_sweeps_by_tritons_own_listener(monkeypatch, stock):
    def mended_run(self, *args, **kwargs):
        knobs.autotuning.listener(fn=bench, key=args, duration=0.5, cache_hit=False)

    told = []
    monkeypatch.setattr(knobs.autotuning, "listener", lambda **fields: told.append(fields["key"]))
    monkeypatch.setattr(Autotuner, "run", mended_run)
    watch = SweepWatch()
    for _ in range(2):
        assert install().autotuner == "not needed"
    make_autotuner(bench).run(None, 128)
    (sweep,) = watch.take()
    assert (sweep.kernel, sweep.key, sweep.seconds_s) == ("bench", "(None, 128)", 0.5)
    assert told == [(None, 128)], "whoever listened before still does"
