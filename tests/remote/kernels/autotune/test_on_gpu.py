"""Four threads on a GPU, cold keys, in a process of their own: what scripts/autotune_race.py prints, checked."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dflashctl_remote.kernels.autotune.fla_cache import has_shared_entries
from dflashctl_remote.kernels.autotune.install import install, is_replaced, remove
from dflashctl_remote.kernels.autotune.races import append_while_iterating

ROOT = Path(__file__).parents[4]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),
]


def arm(name: str, case: str, tmp_path: Path) -> dict[str, object]:
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path / name), "PYTHONPATH": str(ROOT / "remote")}
    command = [sys.executable, str(ROOT / "scripts" / "autotune_race.py"), "--arm", name, "--case", case]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    seen: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return seen


@pytest.mark.parametrize("case", ["sums", "gated_delta"])
def test_patched_threads_with_cold_keys_agree_with_one_alone(case, tmp_path):
    if case == "gated_delta":
        pytest.importorskip("fla", reason="needs flash-linear-attention")
    seen = arm("patched", case, tmp_path)
    assert (seen["errors"], seen["num_failed"], seen["num_wrong"]) == ([], 0, 0)


def test_stock_threads_with_cold_keys_fail(tmp_path):
    """Tells when upstream has mended it."""
    seen = arm("stock", "sums", tmp_path)
    assert seen["num_failed"] or seen["num_wrong"]


def test_flas_own_tensor_cache_is_mended():
    decorators = pytest.importorskip("fla.utils.decorators", reason="needs flash-linear-attention 0.6")
    from fla.ops.utils.index import prepare_lens

    remove()
    assert append_while_iterating(decorators.tensor_cache).errors == {
        "reader": "RuntimeError: deque mutated during iteration"
    }
    try:
        assert install().fla_tensor_cache == "patched"
        assert append_while_iterating(decorators.tensor_cache).errors == {}
        assert not is_shared(prepare_lens), "decorated before the patch"
    finally:
        remove()


def test_flas_own_autotuner_is_mended():
    cache = pytest.importorskip("fla.ops.utils.cache", reason="needs flash-linear-attention 0.6")
    try:
        assert install().fla_autotuner == "patched"
        assert is_replaced(cache.CachedAutotuner, "maybe_load_cached_config")
    finally:
        remove()


def is_shared(decorated: object) -> bool:
    return has_shared_entries(lambda fn: decorated)
