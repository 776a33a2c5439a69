"""The training job. Its spec is the run's run.json, and the run's folder is where that lies; the same command
starts, resumes, and says of a finished run that it is finished.

Exit codes beside the door's: after `stop.requested` 0, after a signal 130, both with a checkpoint saved.
"""

from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from dflashctl_remote.entry.door import StoppedEarly, job_files, run_entry
from dflashctl_remote.spec.events import EventLog
from dflashctl_remote.spec.train import RunRecord


def main() -> NoReturn:
    run_dir = job_files("train").spec.resolve().parent
    run_entry("train", RunRecord, partial(_train, run_dir))


def _train(run_dir: Path, record: RunRecord, events: EventLog) -> dict[str, Any]:
    from dflashctl_remote.trainer.loop import train

    outcome = train(record, run_dir, events)
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
