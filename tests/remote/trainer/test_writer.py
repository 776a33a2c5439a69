"""The writer of checkpoints, apart from what it writes."""

import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from dflashctl_remote.spec.events import CheckpointSaved
from dflashctl_remote.trainer.writer import Snapshot, Writer

SAVED = CheckpointSaved(step=1, path="step-00000001", size_bytes=1, seconds_s=0.0)


@pytest.fixture
def interrupt_soon() -> Iterator[None]:
    """KeyboardInterrupt in the main thread a moment from now, wherever it waits then."""

    def raise_interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, raise_interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    yield
    signal.signal(signal.SIGALRM, before)


def test_a_wait_that_ctrl_c_ended_can_be_taken_up_again(interrupt_soon):
    may_end = threading.Event()

    def write(snapshot: Snapshot) -> CheckpointSaved:
        may_end.wait()
        return SAVED

    writer = Writer()
    writer.begin(Snapshot({}, {}), write)
    with pytest.raises(KeyboardInterrupt):
        writer.finish()
    may_end.set()
    writer.wait(60)
    assert writer.finish() == SAVED
