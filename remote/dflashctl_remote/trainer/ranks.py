"""Several processes that train one drafter: what they tell one another. Alone, nothing is told.

Every process has the whole drafter and optimizer and takes its own batches of a step (order.py). Sums and fp32
gradients are added over all of them, after which each makes the same optimizer step. Process 0 alone writes.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from dflashctl_remote.spec.errors import BadInput, TrainingFailed

_BUCKET_ELEMENTS = 1 << 26
"""256 MiB of fp32 at a time."""
_TIMEOUT = timedelta(minutes=30)
"""A process may write a checkpoint, or compile, while the others wait."""


class RankLost(TrainingFailed):
    """Another process of the run ended, or cannot be reached any more."""


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def add(self, values: Tensor) -> Tensor:
        """Sum over all processes, in place."""
        if self.size > 1:
            _all_reduce(values)
        return values

    def add_all(self, gradients: Sequence[Tensor]) -> None:
        """Sums of many tensors of one dtype, in place, in buckets."""
        if self.size == 1:
            return
        bucket: list[Tensor] = []
        for gradient in gradients:
            if bucket and sum(t.numel() for t in bucket) + gradient.numel() > _BUCKET_ELEMENTS:
                _add_bucket(bucket)
                bucket = []
            bucket.append(gradient)
        if bucket:
            _add_bucket(bucket)

    def any(self, is_so: bool, device: torch.device) -> bool:
        """Whether it is so in any process. All must ask."""
        if self.size == 1:
            return is_so
        told = torch.tensor([float(is_so)], device=device)
        _all_reduce(told, dist.ReduceOp.MAX)
        return bool(told.item())

    def wait(self) -> None:
        """Until all are here."""
        if self.size > 1:
            with _told_of_loss():
                dist.barrier()

    def close(self) -> None:
        if self.size > 1:
            dist.destroy_process_group()


def join(world_size: int, device_kind: str) -> Ranks:
    """Meet the other processes, as torchrun's environment says. Raises BadInput if it says otherwise than run.json."""
    found = int(os.environ.get("WORLD_SIZE", "1"))
    if found != world_size:
        raise BadInput(
            f"run.json is for {world_size} processes and {found} were started",
            hint="`dflashctl train start` starts them; by hand: torchrun --nproc-per-node RANKS -m "
            "dflashctl_remote.entry.train",
        )
    if world_size == 1:
        return Ranks()
    if device_kind == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device_kind == "cuda" else "gloo", timeout=_TIMEOUT)
    return Ranks(dist.get_rank(), dist.get_world_size())


def _add_bucket(bucket: list[Tensor]) -> None:
    if len(bucket) == 1:
        _all_reduce(bucket[0])
        return
    flat = torch.cat([t.reshape(-1) for t in bucket])
    _all_reduce(flat)
    for tensor, piece in zip(bucket, flat.split([t.numel() for t in bucket]), strict=True):
        tensor.copy_(piece.view_as(tensor))


def _all_reduce(values: Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> None:
    with _told_of_loss():
        dist.all_reduce(values, op=op)


@contextmanager
def _told_of_loss() -> Iterator[None]:
    """Raises RankLost for what gloo and nccl raise."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        # Behind "[file of gloo:line] ", before its advice.
        said = re.sub(r"^\[\S+\] ", "", str(error)).partition(". ")[0].partition("\n")[0]
        raise RankLost(
            f"another process of this run is gone: {said[:160]}",
            hint="the log of this run and the kernel's say why; start the run again: it resumes",
        ) from error
