"""The kernels by name. Adding one is a folder beside this file and a line here.

The folder's `check.py` has `check(device) -> tuple[Check, ...]`; its `bench.py`, where there is one,
`bench(device) -> tuple[Bench, ...]`, which is called on a GPU alone and after the checks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from dflashctl_remote.spec.errors import BadInput
from dflashctl_remote.spec.kernels import Bench, Check

if TYPE_CHECKING:
    import torch

KERNELS = (
    "linear_ce",
    "label_argmax",
    "anchor_attention",
    "autotune",
)
"""In the order in which they are checked."""


@dataclass(frozen=True)
class Kernel:
    name: str
    check: "Callable[[torch.device], tuple[Check, ...]]"
    bench: "Callable[[torch.device], tuple[Bench, ...]] | None"


def kernels_named(names: tuple[str, ...] = ()) -> tuple[Kernel, ...]:
    """Those kernels, or all if none is named. Raises BadInput for a name that is not there."""
    unknown = [name for name in names if name not in KERNELS]
    if unknown:
        raise BadInput(f"there is no kernel {unknown[0]}", hint=f"there are: {', '.join(KERNELS)}")
    return tuple(_load(name) for name in names or KERNELS)


def _load(name: str) -> Kernel:
    folder = f"{__package__}.{name}"
    has_bench = find_spec(f"{folder}.bench") is not None
    return Kernel(
        name,
        check=import_module(f"{folder}.check").check,
        bench=import_module(f"{folder}.bench").bench if has_bench else None,
    )
