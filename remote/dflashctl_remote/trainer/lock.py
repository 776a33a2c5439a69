"""One process at a time trains a run. No torch: the lock is taken before anything else happens."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dflashctl_remote.spec.errors import BadInput


@contextmanager
def sole_trainer(run_dir: Path) -> Iterator[None]:
    """Hold the run's lock; raises BadInput if another process trains this run. The system frees it at any death."""
    with (run_dir / "trainer.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadInput(
                f"another process is training in {run_dir} already", hint="stop that one first, or use another run"
            ) from error
        yield
