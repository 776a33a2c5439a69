"""Compilation by dynamo itself; what the GPU's compiler makes of it is tested there."""

import threading
from collections.abc import Iterator

import pytest
import torch
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch._dynamo.utils import counters

from dflashctl_remote.kernels.compiled import MOST_SHAPES, compiled


@pytest.fixture(autouse=True)
def eager_backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Dynamo traces and guards, nothing is generated."""
    real = torch.compile
    torch._dynamo.reset()
    compiled.cache_clear()
    monkeypatch.setattr(torch, "compile", lambda function, **options: real(function, backend="eager", **options))
    yield
    compiled.cache_clear()
    torch._dynamo.reset()


def test_a_shape_is_compiled_once() -> None:
    def twice(values: torch.Tensor) -> torch.Tensor:
        return values * 2

    before = counters["stats"]["unique_graphs"]
    for length in (3, 4, 3, 4, 3):
        compiled(twice)(torch.ones(length))
    assert counters["stats"]["unique_graphs"] - before == 2


def test_more_shapes_than_eight_are_compiled_in_every_thread() -> None:
    """torch's limit is the thread's own."""

    def thrice(values: torch.Tensor) -> torch.Tensor:
        return values * 3

    errors: list[FailOnRecompileLimitHit] = []

    def work(first: int) -> None:
        try:
            for length in range(first, first + 12):
                compiled(thrice)(torch.ones(length))
        except FailOnRecompileLimitHit as error:
            errors.append(error)

    for first in (1, 20):
        thread = threading.Thread(target=work, args=(first,))
        thread.start()
        thread.join()
    assert not errors


def test_too_many_shapes_are_refused_not_run_uncompiled() -> None:
    def fourfold(values: torch.Tensor) -> torch.Tensor:
        return values * 4

    with pytest.raises(FailOnRecompileLimitHit):
        for length in range(1, MOST_SHAPES + 3):
            compiled(fourfold)(torch.ones(length))


def test_what_cannot_be_compiled_whole_is_refused() -> None:
    def breaks(values: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return values

    with pytest.raises(Exception, match="graph_break"):
        compiled(breaks)(torch.ones(2))
