"""These tests compare with packages that others wrote, in an environment of their own: `make test-peers`."""

import sys
from pathlib import Path

import pytest

from dflashctl_remote.drafter.model import Drafter

sys.path.insert(0, str(Path(__file__).parent))
from peers_drafter import KINDS, make_drafter


@pytest.fixture(params=KINDS)
def drafter(request: pytest.FixtureRequest) -> Drafter:
    return make_drafter(request.param)
