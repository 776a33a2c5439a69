"""What the interpreter cannot show: the kernels compile for the users' GPUs and fit in there. No GPU is needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton has no build for this machine")

ROOT = Path(__file__).parents[4]
# In a process of its own: this one has asked for the interpreter.
COMPILE = """
import sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from dflashctl_remote.kernels.anchor_attention.backward import context_kernel, query_kernel
from dflashctl_remote.kernels.anchor_attention.forward import forward_kernel
from dflashctl_remote.kernels.anchor_attention.ranges import COMPACT, Tuning

tuning = Tuning() if sys.argv[2] == "Tuning" else COMPACT
passes = {forward_kernel: tuning.forward, query_kernel: tuning.queries, context_kernel: tuning.context}
for kernel, constants in passes.items():
    known = {"HEADS": 4, "HEADS_P": 4, "SLOTS": 16, "SLOTS_P": 16, "BLOCKS": constants.rows // 64, "SIZE": 128,
             "KEYS": constants.keys, "IS_CAUSAL": False, "PRECISION": "tf32"}
    names = kernel.arg_names
    signature, attributes = {}, {}
    for at, name in enumerate(names):
        kind = "*bf16" if name.endswith("_ptr") else "i32"
        if name in ("lse_ptr", "delta_ptr"):
            kind = "*fp32"
        elif name in ("starts_ptr", "anchors_ptr", "order_ptr", "first_ptr", "full_ptr", "last_ptr"):
            kind = "*i32"
        elif name.startswith("scale"):
            kind = "fp32"
        signature[name] = "constexpr" if name in known else kind
        if name not in known and kind != "fp32":
            attributes[(at,)] = [["tt.divisibility", 16]]
    constexprs = {(names.index(name),): value for name, value in known.items() if name in names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs, attrs=attributes)
    options = {"num_warps": constants.num_warps, "num_stages": constants.num_stages}
    made = compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32), options=options)
    assert made.asm["cubin"]
    print(made.metadata.shared)
"""


@pytest.mark.parametrize(
    ("capability", "tuning", "kibibytes"), [(90, "Tuning", 227), (86, "COMPACT", 99), (120, "COMPACT", 99)]
)
def test_kernels_compile_and_fit_into_shared_memory(capability, tuning, kibibytes, tmp_path):
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "remote"),
        "TRITON_INTERPRET": "0",
        "TRITON_DEFAULT_FP_FUSION": "1",
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
    }
    # From a file: Triton reads the source of what it compiles.
    (tmp_path / "compile_it.py").write_text(COMPILE)
    argv = [sys.executable, str(tmp_path / "compile_it.py"), str(capability), tuning]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [int(line) / 2**10 for line in done.stdout.split()]
    assert len(found) == 3 and max(found) <= kibibytes
