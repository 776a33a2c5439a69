"""Threads with a stream each that meet cold keys of real kernels, on a GPU, with nothing to lead them.

Run each arm in a process of its own with a fresh TRITON_CACHE_DIR: a key is cold only once, and a launch that went
wrong can leave a context unusable.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from dflashctl_remote.kernels.autotune.races import run_threads
from dflashctl_remote.kernels.autotune.sweeps import SweepWatch

NUM_THREADS = 4
LIMIT_S = 400.0
"""For all that a stress compiles and times."""


@dataclass(frozen=True)
class Stress:
    calls: int
    num_failed: int
    """Calls that raised."""
    num_wrong: int
    """Calls whose result differs from the same call's, made alone afterwards."""
    errors: tuple[str, ...]
    """The different messages."""
    num_sweeps: int
    """By our own count: 0 without the patch."""


@triton.autotune(
    configs=[triton.Config({"BLOCK": block}, num_warps=warps) for block in (128, 256, 512, 1024) for warps in (2, 4)],
    key=["N"],
    reset_to_zero=["total_ptr"],
)
@triton.jit
def _sum_kernel(values_ptr, total_ptr, N, BLOCK: tl.constexpr):
    offsets_B = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values_B = tl.load(values_ptr + offsets_B, mask=offsets_B < N, other=0.0)
    tl.atomic_add(total_ptr, tl.sum(values_B))


def sum_of(values_N: Tensor) -> Tensor:
    """Their sum [1], by a kernel that is only right if its own total was set to zero by the sweep."""
    total = torch.zeros(1, device=values_N.device)
    num_values = values_N.numel()
    _sum_kernel[lambda meta: (triton.cdiv(num_values, meta["BLOCK"]),)](values_N, total, num_values)
    return total


def stress_sums(num_keys: int = 6) -> Stress:
    """Whole numbers, so that sums in any order are equal to the bit."""
    values = [torch.arange(4096 + 1024 * key, device="cuda").remainder(7).float() for key in range(num_keys)]
    return stress([partial(sum_of, values_N) for values_N in values], tolerance=0.0)


def stress_gated_delta(heads: int = 4) -> Stress:
    """fla's chunked gated delta rule on packed documents: some eight autotuned kernels, and its tensor caches.

    One set of cold keys, for which a GPU compiles and times for a minute or two, then the same warm.
    """
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    generator = torch.Generator(device="cuda").manual_seed(heads)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda", generator=generator).bfloat16()

    query, key, value = (normal(1, 512, heads, 64) for _ in range(3))
    gate = -normal(1, 512, heads).float().abs()
    beta = normal(1, 512, heads).sigmoid()

    def call() -> Tensor:
        # New offsets for each call, as for each batch: fla's caches go by the object.
        offsets = torch.tensor([0, 100, 356, 512], device="cuda")
        output: Tensor = chunk_gated_delta_rule(
            query, key, value, g=gate, beta=beta, use_qk_l2norm_in_kernel=True, cu_seqlens=offsets
        )[0]
        return output

    return stress([call, call, call], tolerance=0.03)


@torch.no_grad()
def stress(calls: list[Callable[[], Tensor]], *, tolerance: float) -> Stress:
    """Each thread makes all the calls on its own stream, all threads the same one at a time; then compared.

    tolerance: largest absolute difference to the same call made alone.
    """
    watch, start = SweepWatch(), threading.Barrier(NUM_THREADS)
    torch.cuda.synchronize()
    failed: list[str] = []
    results: list[tuple[int, Tensor]] = []

    def body() -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for index, call in enumerate(calls):
                start.wait()
                try:
                    results.append((index, call()))
                    torch.cuda.current_stream().synchronize()
                except Exception as error:  # noqa: BLE001 - what it raises is the result
                    failed.append(f"{type(error).__name__}: {error}"[:120])

    errors = run_threads({f"stream {number}": body for number in range(NUM_THREADS)}, LIMIT_S)
    num_sweeps = len(watch.take())
    alone = [call() for call in calls]
    num_wrong = sum(1 for index, result in results if not torch.allclose(result, alone[index], rtol=0, atol=tolerance))
    messages = tuple(sorted({*failed, *errors.values()}))
    return Stress(len(calls) * NUM_THREADS, len(failed), num_wrong, messages, num_sweeps)
