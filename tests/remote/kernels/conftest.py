"""Triton's interpreter where there is no GPU, and memory that holds NaN until somebody writes to it."""

from collections.abc import Iterator

import pytest
import torch

HAS_GPU = torch.cuda.is_available()


@pytest.fixture
def interpreter() -> None:
    """Skips where Triton cannot run; fails where it was imported before anybody asked for its interpreter."""
    triton = pytest.importorskip("triton", reason="triton has no build for this machine")
    if not HAS_GPU:
        assert triton.knobs.runtime.interpret, "tests/conftest.py sets TRITON_INTERPRET"


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if HAS_GPU else "cpu")


@pytest.fixture
def poisoned() -> Iterator[None]:
    """torch.empty gives NaN, or the largest integer."""
    was_on = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(was_on)
