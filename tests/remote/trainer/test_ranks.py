"""Several processes on one machine, over gloo: the same sums as one, and ended together."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dflashctl_remote.spec.placement import PlacementSpec
from dflashctl_remote.spec.train import OptimSpec, RunRecord
from dflashctl_remote.trainer.checkpoint import complete_steps


def started(record: RunRecord, folder: Path) -> subprocess.Popen:
    folder.mkdir(exist_ok=True)
    if not (folder / "run.json").exists():
        (folder / "run.json").write_text(record.model_dump_json())
    ranks = record.train.placement.ranks
    entry = ["train"] if ranks == 1 else ["ranks", "--ranks", str(ranks)]
    argv = [sys.executable, "-m", f"dflashctl_remote.entry.{entry[0]}", *entry[1:]]
    files = ["--spec", str(folder / "run.json"), "--events", str(folder / "events.jsonl")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*argv, *files], env=environment, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen) -> tuple[int, str]:
    _, err = process.communicate(timeout=120)
    return process.returncode, err


def events(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines() if line.strip()]


def losses(folder: Path) -> list[float]:
    return [event["loss"] for event in events(folder) if event["kind"] == "step"]


def record_of(make_record, ranks: int, **changes) -> RunRecord:
    fields = {"optim": OptimSpec(accumulation=4), "num_threads": 1, **changes}
    return make_record(placement=PlacementSpec(ranks=ranks), **fields)


def test_two_ranks_train_as_one_and_only_the_first_writes(make_record, tmp_path):
    for ranks in (1, 2):
        code, err = ended(started(record_of(make_record, ranks), tmp_path / str(ranks)))
        assert code == 0, err
    assert losses(tmp_path / "2") == pytest.approx(losses(tmp_path / "1"), rel=1e-4)
    kinds = [event["kind"] for event in events(tmp_path / "2")]
    assert (kinds.count("started"), kinds.count("finished")) == (1, 1)
    assert complete_steps(tmp_path / "2/checkpoints").keys() == complete_steps(tmp_path / "1/checkpoints").keys()


@pytest.mark.slow
def test_ranks_end_with_the_process_that_started_them(make_record, tmp_path):
    process = started(record_of(make_record, 2, num_steps=4000), tmp_path / "run")
    while not (tmp_path / "run/events.jsonl").exists() or not losses(tmp_path / "run"):
        assert process.poll() is None, process.communicate()[1]
    children = [int(word) for word in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    assert len(children) == 2
    process.kill()
    # Its stderr is theirs too: this waits until none of them is there to write to it.
    process.communicate(timeout=60)
    assert not any(is_alive(child) for child in children)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.slow
def test_ranks_that_are_stopped_save_one_checkpoint_and_resume(make_record, tmp_path):
    record = record_of(make_record, 2, num_steps=400)
    process = started(record, tmp_path / "run")
    while not (tmp_path / "run/events.jsonl").exists() or not losses(tmp_path / "run"):
        assert process.poll() is None, process.communicate()[1]
    process.send_signal(signal.SIGTERM)
    code, err = ended(process)
    assert code == 130, err
    assert events(tmp_path / "run")[-1]["kind"] == "stopped"
    assert max(complete_steps(tmp_path / "run/checkpoints")) == len(losses(tmp_path / "run"))


def test_a_stop_by_file_ends_all_ranks_with_0_although_a_signal_came_too(make_record, tmp_path):
    """As a supervisor does it: the file first, then SIGTERM to all."""
    process = started(record_of(make_record, 2, num_steps=400), tmp_path / "run")
    while not (tmp_path / "run/events.jsonl").exists() or not losses(tmp_path / "run"):
        assert process.poll() is None, process.communicate()[1]
    (tmp_path / "run/stop.requested").write_text('{"who": "anna"}')
    process.send_signal(signal.SIGTERM)
    code, err = ended(process)
    assert (code, events(tmp_path / "run")[-1]["reason"]) == (0, "asked to stop by anna"), err
    assert not (tmp_path / "run/stop.requested").exists()


def test_a_rank_that_fails_ends_the_run_with_its_code_and_its_words(make_record, tmp_path):
    record = record_of(make_record, 2, dataset=str(tmp_path / "nothing"))
    code, err = ended(started(record, tmp_path / "run"))
    assert code != 0, err
    assert "failed" in [event["kind"] for event in events(tmp_path / "run")]


def test_the_death_of_a_rank_is_told_in_a_sentence_after_a_checkpoint_of_the_last_step(make_record, tmp_path):
    process = started(record_of(make_record, 2, num_steps=400), tmp_path / "run")
    while not (tmp_path / "run/events.jsonl").exists() or not losses(tmp_path / "run"):
        assert process.poll() is None, process.communicate()[1]
    second = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[1]
    os.kill(int(second), signal.SIGKILL)
    code, err = ended(process)
    last = events(tmp_path / "run")[-1]
    assert code == 128 + signal.SIGKILL, err
    assert (last["error"], last["traceback"]) == ("RankLost", ""), last
    assert max(complete_steps(tmp_path / "run/checkpoints")) == len(losses(tmp_path / "run"))


def test_another_number_of_processes_than_the_run_is_for_is_refused(make_record, tmp_path):
    record = record_of(make_record, 2)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text(record.model_dump_json())
    alone = record.model_copy(update={"train": record.train.model_copy(update={"placement": PlacementSpec()})})
    code, _ = ended(started(alone, folder))
    assert code == 2
    assert "is for 2 processes and 1 were started" in events(folder)[-1]["message"]
