"""The races led into with the patch in place, and on a GPU threads with cold keys left to themselves."""

from importlib.util import find_spec

import torch

from dflashctl_remote.kernels.autotune.install import install
from dflashctl_remote.kernels.common.checking import Checks
from dflashctl_remote.spec.kernels import Check

_LED = (
    "a launch that ends during a sweep leaves it its arguments",
    "a sweep zeroes its own call's buffer",
    "threads with one cold key sweep once",
)
_LEFT = ("4 threads, cold keys, own streams: sums", "4 threads, cold keys, own streams: fla's gated delta rule")


def check(device: torch.device) -> tuple[Check, ...]:
    """Installs the patch, which stays. Tell stock from patched with scripts/autotune_race.py."""
    checks = Checks("autotune")
    if find_spec("triton") is None:
        for claim in (*_LED, *_LEFT):
            checks.skip(claim, "triton is not installed here")
        return tuple(checks.found)
    from dflashctl_remote.kernels.autotune import races

    install()
    seen = (races.end_during_a_sweep(), races.zero_the_other_buffer(), races.crowd_one_key())
    right = (races.Crash({}, num_benches=3), races.Zeroings({}, first=4, second=4), races.Crash({}, num_benches=3))
    for claim, found, wanted in zip(_LED, seen, right, strict=True):
        checks.that(claim, found == wanted, str(found))
    _check_streams(checks, device)
    return tuple(checks.found)


def _check_streams(checks: Checks, device: torch.device) -> None:
    if device.type != "cuda":
        for claim in _LEFT:
            checks.skip(claim, "needs a GPU")
        return
    from dflashctl_remote.kernels.autotune import gpu_races

    sums = gpu_races.stress_sums()
    checks.that(_LEFT[0], sums.num_failed + sums.num_wrong == 0 and not sums.errors, str(sums))
    if find_spec("fla") is None:
        checks.skip(_LEFT[1], "flash-linear-attention is not installed here")
        return
    rule = gpu_races.stress_gated_delta()
    checks.that(_LEFT[1], rule.num_failed + rule.num_wrong == 0 and not rule.errors, str(rule))
