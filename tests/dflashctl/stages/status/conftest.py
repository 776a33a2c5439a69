import pytest

from dflashctl.artifacts import Workdir
from dflashctl_remote.spec.events import CheckpointSaved, EventLog, Finished, Started
from dflashctl_remote.spec.manifest import write_json, write_manifest

NOW_S = 2_000_000.0


@pytest.fixture
def workdir(tmp_path):
    return Workdir(tmp_path / "work")


@pytest.fixture
def run(workdir, step):
    """A run on disk whose losses are given; finished unless said otherwise. It has no process."""

    def make(losses, *, run_id="r", at_s=NOW_S - 60, pid=2**22 + 1, is_finished=True, checkpoint_steps=()):
        ref = workdir.new_run(run_id)
        ref.folder.mkdir(parents=True)
        ref.record_path.write_text("{}")
        log = EventLog(ref.events_path)
        log.emit(Started(at_s=at_s - len(losses), job="train", pid=pid, device="cpu"))
        for number, loss in enumerate(losses, start=1):
            log.emit(step(number, at_s=at_s - len(losses) + number, loss=loss, num_steps=10_000))
        for number in checkpoint_steps:
            folder = ref.folder / "checkpoints" / f"step-{number:08d}"
            folder.mkdir(parents=True)
            write_manifest(folder, "checkpoint", bundle_sha="0" * 12, about={"step": number})
            log.emit(CheckpointSaved(at_s=at_s, step=number, path=str(folder), size_bytes=1, seconds_s=0.1))
        if is_finished:
            log.emit(Finished(at_s=at_s))
        log.close()
        return ref

    return make


@pytest.fixture
def evaluated(workdir, eval_report):
    """An evaluation on disk of a run's checkpoint."""

    def make(ref, step, *, name="e", headline=2.5):
        folder = workdir.evaluations / name
        folder.mkdir(parents=True)
        checkpoint = ref.folder / "checkpoints" / f"step-{step:08d}"
        report = eval_report(headline=headline, checkpoint=str(checkpoint), step=step)
        (folder / "report.json").write_text(report.model_dump_json())
        write_manifest(folder, "evaluation", bundle_sha="0" * 12, about={})
        return folder

    return make


@pytest.fixture
def benchmarked(workdir):
    def make(**changes):
        record = {
            "schema_version": 1, "server": "s", "engine": "reference", "drafter_label": "r@400",
            "started_at_s": NOW_S - 500, "ended_at_s": NOW_S - 400, "num_prompts": 20, "tau": 1.7,
            "num_verify_steps": 900, "speedup": 0.8, "is_lossless": True, "is_valid": True, "folder": "bench",
        }  # fmt: skip
        path = workdir.benchmarks / "s-1" / "run.json"
        path.parent.mkdir(parents=True)
        write_json(path, {**record, **changes})
        return path

    return make
