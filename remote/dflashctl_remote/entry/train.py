"""The training job. Its spec is the run's run.json, and the run's folder is where that lies; the same command
starts, resumes, and says of a finished run that it is finished. With torchrun's environment it is one of several.

Exit codes beside the door's: after `stop.requested` 0, after a signal 130, both with a checkpoint saved.
"""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from dflashctl_remote.entry.door import StoppedEarly, job_files, run_entry
from dflashctl_remote.spec.errors import BadInput
from dflashctl_remote.spec.events import AmongOthers, EventLog, LastWords
from dflashctl_remote.spec.train import RunRecord
from dflashctl_remote.trainer.lock import sole_trainer
from dflashctl_remote.trainer.stop import leave


def main() -> NoReturn:
    run_dir = job_files("train").spec.resolve().parent
    if int(os.environ.get("RANK", "0")) > 0:
        run_entry("train", RunRecord, partial(_train, run_dir), log=LastWords)
    try:
        # Before the first event: what a second process said would read as the end of the one that trains.
        with sole_trainer(run_dir):
            try:
                run_entry("train", RunRecord, partial(_train, run_dir), log=AmongOthers)
            except SystemExit as end:
                leave(int(end.code or 0))
    except BadInput as error:
        print(f"train: {error.message} ({error.hint})", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        print(f"train: cannot lock {error.filename}: {error.strerror}", file=sys.stderr)
        sys.exit(2)


def _train(run_dir: Path, record: RunRecord, events: EventLog) -> dict[str, Any]:
    from dflashctl_remote.target.load import resolve_device
    from dflashctl_remote.trainer.loop import train
    from dflashctl_remote.trainer.ranks import join

    ranks = join(record.train.placement.world_size, resolve_device(record.train.device).type)
    outcome = train(record, run_dir, events, ranks=ranks)
    ranks.close()
    if outcome.stop_reason is not None:
        raise StoppedEarly(outcome.stop_reason, checkpoint=str(outcome.checkpoint), exit_code=outcome.exit_code)
    return {
        "run_id": record.run_id,
        "step": outcome.state.step,
        "loss": outcome.state.loss,
        "checkpoint": str(outcome.checkpoint),
    }


if __name__ == "__main__":
    main()
