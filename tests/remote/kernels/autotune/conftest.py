"""Arms: `stock` is Triton as it was installed, `patched` the same with our members in place."""

from collections.abc import Iterator

import pytest

pytest.importorskip("triton", reason="triton has no build for this machine")

from dflashctl_remote.kernels.autotune.install import Safety, install, remove


@pytest.fixture
def stock() -> Iterator[None]:
    remove()
    yield
    remove()


@pytest.fixture
def patched() -> Iterator[Safety]:
    remove()
    yield install()
    remove()
