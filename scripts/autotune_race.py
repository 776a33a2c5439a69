"""Shows the thread races of Triton's autotuner and of fla's tensor cache, stock and patched, side by side.

    PYTHONPATH=remote python scripts/autotune_race.py

Each case of each arm runs in a process of its own with an empty TRITON_CACHE_DIR; cases for a GPU are left out where
there is none. What stands in the table's `stock` column is what a run without the patch would meet.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from dflashctl_remote.kernels.autotune import races
from dflashctl_remote.kernels.autotune.install import install

ARMS = ("stock", "patched")
LIMIT_S = 280


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arm", choices=ARMS, help="run one case here and print what it saw as JSON")
    parser.add_argument("--case", choices=list(CASES))
    asked = parser.parse_args()
    if asked.arm:
        run_here(asked.arm, asked.case)
        return
    cases = [name for name in CASES if torch.cuda.is_available() or name not in GPU_CASES]
    seen = {name: [run_apart(arm, name) for arm in ARMS] for name in cases}
    import triton

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    print(f"\ntriton {triton.__version__}, torch {torch.__version__}, {device}")
    print("| case | stock | patched |\n|---|---|---|")
    for name, (stock, patched) in seen.items():
        print(f"| {name} | {stock} | {patched} |")


def run_here(arm: str, case: str) -> None:
    if torch.cuda.is_available() and case in FLA_CASES:
        # Before the patch, as in a run where the target is loaded first.
        importlib.import_module("fla.ops.gated_delta_rule")
    if arm == "patched":
        print(install(), file=sys.stderr)
    print(json.dumps(asdict(CASES[case]())))


def run_apart(arm: str, case: str) -> str:
    """What the arm saw, in the words of the table."""
    command = [sys.executable, __file__, "--arm", arm, "--case", case]
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"TRITON_CACHE_DIR": cache}
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return f"did not end in {LIMIT_S} s"
    if done.returncode:
        return f"exit code {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1][:100]}"
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    words = [f"{key.removeprefix('num_').replace('_', ' ')} {value}" for key, value in seen.items() if key != "errors"]
    errors = {*seen["errors"].values()} if isinstance(seen["errors"], dict) else seen["errors"]
    return "; ".join([*words, *(sorted(errors) or ["no error"])])


def fla_tensor_cache() -> races.Threads:
    """fla's own where it can be imported (it asks for a GPU), otherwise one of its shape."""
    if not torch.cuda.is_available():
        from dflashctl_remote.kernels.autotune.fla_cache import safe_tensor_cache
        from dflashctl_remote.kernels.autotune.install import is_replaced

        is_patched = is_replaced(races.Autotuner, "run")
        return races.append_while_iterating(
            safe_tensor_cache(races.identity_cache) if is_patched else races.identity_cache
        )
    from fla.utils import decorators

    return races.append_while_iterating(decorators.tensor_cache)


def sums() -> Any:
    from dflashctl_remote.kernels.autotune.gpu_races import stress_sums

    return stress_sums()


def gated_delta() -> Any:
    from dflashctl_remote.kernels.autotune.gpu_races import stress_gated_delta

    return stress_gated_delta()


GPU_CASES = ("sums", "gated_delta")
FLA_CASES = ("fla_tensor_cache", "gated_delta")
CASES: dict[str, Callable[[], Any]] = {
    "end_during_a_sweep": races.end_during_a_sweep,
    "zero_the_other_buffer": races.zero_the_other_buffer,
    "crowd_one_key": races.crowd_one_key,
    "fla_tensor_cache": fla_tensor_cache,
    "sums": sums,
    "gated_delta": gated_delta,
}

if __name__ == "__main__":
    main()
