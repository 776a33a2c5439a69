import pytest

from dflashctl.artifacts import Workdir
from dflashctl_remote.spec.events import CheckpointSaved, EventLog, Finished, Started
from dflashctl_remote.spec.manifest import Manifest, write_json
from dflashctl_remote.spec.train import RunRecord, TrainSpec

NOW_S = 2_000_000.0


def manifest(folder, kind, at_s, about=None):
    """As of a moment that the test chooses."""
    made = Manifest(kind=kind, created_at_s=at_s, bundle_sha="0" * 12, files=(), about=about or {})
    (folder / "manifest.json").write_text(made.model_dump_json())


@pytest.fixture
def workdir(tmp_path):
    return Workdir(tmp_path / "work")


@pytest.fixture
def run(workdir, tmp_path, step):
    """A run on disk whose losses are given; finished unless said otherwise. It has no process."""

    def make(losses, *, run_id="r", at_s=NOW_S - 60, pid=2**22 + 1, is_finished=True, checkpoint_steps=()):
        ref = workdir.new_run(run_id)
        ref.folder.mkdir(parents=True)
        spec = TrainSpec(target="/targets/demo", dataset=str(tmp_path / "data"), num_steps=10_000)
        record = RunRecord(run_id=run_id, created_at_s=at_s - 1000, bundle_sha="0" * 64, train=spec)
        ref.record_path.write_text(record.model_dump_json())
        log = EventLog(ref.events_path)
        log.emit(Started(at_s=at_s - len(losses), job="train", pid=pid, device="cpu"))
        for number, loss in enumerate(losses, start=1):
            log.emit(step(number, at_s=at_s - len(losses) + number, loss=loss, num_steps=10_000))
        for number in checkpoint_steps:
            folder = ref.folder / "checkpoints" / f"step-{number:08d}"
            folder.mkdir(parents=True)
            manifest(folder, "checkpoint", at_s)
            log.emit(CheckpointSaved(at_s=at_s, step=number, path=str(folder), size_bytes=1, seconds_s=0.1))
        if is_finished:
            log.emit(Finished(at_s=at_s))
        log.close()
        return ref

    return make


@pytest.fixture
def evaluated(workdir, eval_report):
    """An evaluation on disk of a run's checkpoint."""

    def make(ref, step, *, name="e", headline=2.5, at_s=NOW_S - 300, **changes):
        folder = workdir.evaluations / name
        folder.mkdir(parents=True)
        checkpoint = ref.folder / "checkpoints" / f"step-{step:08d}"
        report = eval_report(headline=headline, checkpoint=str(checkpoint), step=step, **changes)
        (folder / "report.json").write_text(report.model_dump_json())
        manifest(folder, "evaluation", at_s)
        return folder

    return make


@pytest.fixture
def benchmarked(workdir):
    def make(name="s-1", **changes):
        record = {
            "schema_version": 1, "server": "s", "engine": "reference", "drafter_label": "r@400",
            "started_at_s": NOW_S - 500, "ended_at_s": NOW_S - 400, "num_prompts": 20, "tau": 1.7,
            "num_verify_steps": 900, "speedup": 0.8, "is_lossless": True, "is_valid": True, "folder": "bench",
        }  # fmt: skip
        path = workdir.benchmarks / name / "run.json"
        path.parent.mkdir(parents=True)
        write_json(path, {**record, **changes})
        return path

    return make


@pytest.fixture
def dataset(dataset_info):
    def make(folder, at_s=NOW_S - 900, **changes):
        folder.mkdir(parents=True)
        manifest(folder, "dataset", at_s, {**dataset_info.model_dump(), **changes})
        return folder

    return make
