"""What the interpreter cannot show: that the kernels compile for the users' GPUs. None of these is needed for that."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton has no build for this machine")

ROOT = Path(__file__).parents[3]
# In a process of its own: this one has asked for the interpreter.
COMPILE = """
import sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from dflashctl_remote.kernels.common.rows import RowTuning
from dflashctl_remote.kernels.label_argmax.kernel import argmax_kernel
from dflashctl_remote.kernels.linear_ce.kernel import row_kernel

tuning = RowTuning()
constants = {"BLOCK": tuning.block, "BLOCK_D": 8192, "STAGES": tuning.num_stages,
             "HAS_WEIGHTS": True, "WANTS_GRAD": True}
types = {"labels_ptr": "*i64", "top1_ptr": "*i64", "weights_ptr": "*fp32", "cross_entropy_ptr": "*fp32"}
for kernel in (row_kernel, argmax_kernel):
    names = kernel.arg_names
    signature, attributes = {}, {}
    for at, name in enumerate(names):
        default = "*bf16" if name.endswith("_ptr") else "i32"
        signature[name] = "constexpr" if name in constants else types.get(name, default)
        if name not in constants:
            attributes[(at,)] = [["tt.divisibility", 16]]
    constexprs = {(names.index(name),): value for name, value in constants.items() if name in names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs, attrs=attributes)
    made = compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32), options={"num_warps": tuning.num_warps})
    assert made.asm["cubin"]
    print(made.metadata.shared)
"""


@pytest.mark.parametrize("capability", [86, 90, 120])
def test_row_kernels_compile_and_fit_into_shared_memory(capability, tmp_path):
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "remote"),
        "TRITON_INTERPRET": "0",
        "TRITON_DEFAULT_FP_FUSION": "1",
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
    }
    # From a file: Triton reads the source of what it compiles.
    (tmp_path / "compile.py").write_text(COMPILE)
    argv = [sys.executable, str(tmp_path / "compile.py"), str(capability)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert all(int(line) <= 99 * 1024 for line in done.stdout.split())
