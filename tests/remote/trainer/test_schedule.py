import subprocess
import sys
from pathlib import Path

import pytest

from dflashctl_remote.spec.train import OptimSpec
from dflashctl_remote.trainer.schedule import lr_at

BUNDLE = Path(__file__).parents[3] / "remote"


def spec(*, warmup: float = 0.2, floor: float = 0.0) -> OptimSpec:
    return OptimSpec(learning_rate=1.0, warmup_fraction=warmup, min_lr_fraction=floor)


def test_warm_up_is_linear_and_reaches_the_full_rate():
    assert [lr_at(step, 10, spec()) for step in (1, 2)] == [0.5, 1.0]


def test_cosine_worked_by_hand():
    # 8 steps follow the 2 of warm-up: 1/4, 1/2 and 3/4 of the way are steps 4, 6 and 8.
    assert lr_at(4, 10, spec()) == pytest.approx(0.5 * (1 + 2**-0.5))
    assert lr_at(6, 10, spec()) == pytest.approx(0.5)
    assert lr_at(8, 10, spec()) == pytest.approx(0.5 * (1 - 2**-0.5))


def test_last_step_is_the_floor():
    assert lr_at(10, 10, spec()) == pytest.approx(0.0, abs=1e-12)
    assert lr_at(10, 10, spec(floor=0.1)) == pytest.approx(0.1)


def test_half_way_with_a_floor_is_the_mean_of_both_ends():
    assert lr_at(6, 10, spec(floor=0.1)) == pytest.approx(0.55)


def test_no_warm_up_starts_on_the_cosine():
    assert lr_at(1, 2, spec(warmup=0.0)) == pytest.approx(0.5)


def test_warm_up_that_rounds_to_every_step_never_divides_by_zero():
    assert lr_at(1, 1, spec(warmup=0.9)) == 1.0


def test_schedule_starts_without_torch():
    code = "import sys, dflashctl_remote.trainer.schedule; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(BUNDLE)}, check=False)
    assert done.returncode == 0
