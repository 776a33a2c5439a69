"""The GPUs of a host as a start must know them: who they are, what is used of them, and which run has leased each."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    index: str
    uuid: str
    name: str
    used_bytes: int | None
    """By whomever; None where the driver does not tell."""
    total_bytes: int | None
    leased_by: str | None
    """Name of a run of the same work folder."""


@dataclass(frozen=True)
class Gpus:
    all: tuple[Gpu, ...]
    problem: str = ""
    """Why the driver did not answer."""


def read_gpus(lines: Iterable[tuple[str, str]]) -> Gpus:
    """From the key and value of each line that gpus.sh printed, whatever else is among them."""
    told = list(lines)
    leases = dict(value.partition(" ")[::2] for key, value in told if key == "lease")
    gpus = []
    for key, value in told:
        cells = [cell.strip() for cell in value.split(",")]
        if key == "gpu" and len(cells) == 5:
            index, uuid, name, used, total = cells
            gpus.append(Gpu(index, uuid, name, _mebibytes(used), _mebibytes(total), leases.get(uuid)))
    problem = " ".join(value for key, value in told if key == "gpu_problem")
    return Gpus(tuple(gpus), problem.strip())


def _mebibytes(cell: str) -> int | None:
    """None for `[N/A]` and its like."""
    return int(cell) * 2**20 if cell.isdigit() else None
