"""The stages in threads give what the stages in turns give, whatever the threads' timing."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from dflashctl_remote.spec.errors import ArtifactCorrupt
from dflashctl_remote.spec.events import EventLog
from dflashctl_remote.spec.placement import PlacementSpec, devices_of
from dflashctl_remote.trainer.checkpoint import complete_steps
from dflashctl_remote.trainer.loop import train

IN_TURNS = PlacementSpec(states_ahead=0)


def run(record, folder: Path, **options):
    folder.mkdir(exist_ok=True)
    with closing(EventLog(folder / "events.jsonl")) as events:
        return train(record, folder, events, **options)


def steps(folder: Path) -> list[dict]:
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines() if line.strip()]
    return [event for event in events if event["kind"] == "step"]


def losses(folder: Path) -> dict[int, float]:
    return {event["step"]: event["loss"] for event in steps(folder)}


def delays(seed: int):
    """Makes each stage as slow as it happens to be."""
    draw, lock, never = random.Random(seed), threading.Lock(), threading.Event()

    def pause(stage: str, batch: int) -> None:
        with lock:
            seconds = draw.choice((0.0, 0.0, 0.002, 0.01))
        never.wait(seconds)

    return pause


def placed(record, placement):
    return record.model_copy(update={"train": record.train.model_copy(update={"placement": placement})})


@pytest.fixture(scope="module")
def folder_in_turns(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("in_turns")


@pytest.fixture
def in_turns(folder_in_turns, make_record) -> dict[int, float]:
    """Losses with one batch in flight."""
    if not (folder_in_turns / "events.jsonl").exists():
        run(make_record(placement=IN_TURNS), folder_in_turns)
    return losses(folder_in_turns)


@pytest.mark.parametrize("layout", ["colocated", "1+1", "3+1", "6+1"])
@pytest.mark.parametrize("states_ahead", [1, 3])
def test_any_number_of_targets_and_batches_in_flight_gives_the_same_losses(
    make_record, in_turns, tmp_path, layout, states_ahead
):
    placement = PlacementSpec(layout=layout, states_ahead=states_ahead)
    run(make_record(placement=placement), tmp_path, pause=delays(states_ahead))
    assert losses(tmp_path) == in_turns


def test_two_drafters_add_up_to_one_and_the_same_way_every_time(make_record, in_turns, tmp_path):
    record = make_record(placement=PlacementSpec(layout="2+2"))
    for name, seed in (("one", 1), ("other", 2)):
        run(record, tmp_path / name, pause=delays(seed))
    assert losses(tmp_path / "one") == losses(tmp_path / "other")
    assert list(losses(tmp_path / "one").values()) == pytest.approx(list(in_turns.values()), rel=1e-4)


def test_every_step_says_how_full_the_queues_are_and_which_stage_limits(make_record, tmp_path):
    run(make_record(placement=PlacementSpec(layout="2+1")), tmp_path)
    for event in steps(tmp_path):
        assert [queue["name"] for queue in event["queues"]] == ["rows", "hidden states"]
        told = [(stage["name"], stage["count"]) for stage in event["stages"]]
        assert told == [("loader", 1), ("target", 2), ("drafter", 1)]
        assert event["limiting_stage"] in ("loader", "target", "drafter")


def test_a_stage_that_dies_leaves_a_checkpoint_of_the_last_complete_step(make_record, in_turns, tmp_path):
    def dies(stage: str, batch: int) -> None:
        if stage == "target 1" and batch >= 8:
            raise ArtifactCorrupt("the shard is gone")

    record = make_record(placement=PlacementSpec(layout="2+1"))
    with pytest.raises(ArtifactCorrupt, match="the shard is gone"):
        run(record, tmp_path, pause=dies)
    last = max(losses(tmp_path))
    assert max(complete_steps(tmp_path / "checkpoints")) == last >= 1
    assert not any(thread.name.startswith(("loader", "target", "writer")) for thread in threading.enumerate())
    run(record, tmp_path)
    assert losses(tmp_path) == in_turns


KILLED = """
import os, random, signal, sys, threading
from contextlib import closing
from pathlib import Path
from dflashctl_remote.spec.events import EventLog
from dflashctl_remote.spec.train import RunRecord
from dflashctl_remote.trainer.loop import train

folder, seed, num_calls = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
draw, lock, never = random.Random(seed), threading.Lock(), threading.Event()
calls = 0

def pause(stage, batch):
    global calls
    with lock:
        calls += 1
        seconds = draw.choice((0.0, 0.0, 0.002, 0.01))
        if calls == num_calls:
            os.kill(os.getpid(), signal.SIGKILL)
    never.wait(seconds)

record = RunRecord.model_validate_json((folder / "run.json").read_bytes())
with closing(EventLog(folder / "events.jsonl")) as events:
    train(record, folder, events, pause=pause)
"""


def kill_and_resume(record, folder: Path, seed: int, num_kills: int) -> int:
    """How often it was killed before it came to its end."""
    folder.mkdir()
    (folder / "run.json").write_text(record.model_dump_json())
    draw = random.Random(seed)
    path = os.pathsep.join(sys.path)
    for number in range(num_kills + 1):
        at = draw.randint(1, 40) if number < num_kills else 10**9
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(folder), str(seed + number), str(at)],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return number
        assert done.returncode == -signal.SIGKILL, done.stderr
    raise AssertionError("it never came to its end")


def test_killed_three_times_with_queues_in_flight_it_repeats_the_unbroken_run_to_the_bit(
    make_record, in_turns, tmp_path
):
    record = make_record(placement=PlacementSpec(layout="3+1"), num_threads=1)
    assert kill_and_resume(record, tmp_path / "run", seed=5, num_kills=3) >= 1
    run(
        record.model_copy(update={"train": record.train.model_copy(update={"placement": IN_TURNS})}), tmp_path / "whole"
    )
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")


@pytest.mark.slow
def test_twenty_kills_at_random_points_change_no_loss(make_record, tmp_path):
    record = make_record(placement=PlacementSpec(layout="3+1"), num_threads=1, num_steps=24)
    num_kills = kill_and_resume(record, tmp_path / "run", seed=77, num_kills=20)
    assert num_kills >= 15
    run(
        record.model_copy(update={"train": record.train.model_copy(update={"placement": IN_TURNS})}), tmp_path / "whole"
    )
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")


@pytest.mark.parametrize(
    ("layout", "num_gpus", "targets", "drafters"),
    [
        ("1+1", 1, (0,), (0,)),
        ("1+1", 2, (0,), (1,)),
        ("2+1", 2, (0, 0), (1,)),
        ("3+1", 4, (0, 1, 2), (3,)),
        ("6+1", 8, (0, 1, 2, 3, 4, 5), (7,)),
        ("2+2", 4, (0, 1), (2, 3)),
    ],
)
def test_drafters_have_the_last_gpus_and_targets_share_the_others(layout, num_gpus, targets, drafters):
    assert devices_of(PlacementSpec(layout=layout), num_gpus) == (targets, drafters)


def test_drafters_that_leave_no_gpu_are_refused():
    with pytest.raises(ValueError, match=r"2\+2 leaves no GPU of 2"):
        devices_of(PlacementSpec(layout="2+2"), 2)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"layout": "3x1"}, "colocated or N\\+M"),
        ({"layout": "0+1"}, "colocated or N\\+M"),
        ({"layout": "3+1", "ranks": 2}, "is one process"),
        ({"layout": "3+1", "states_ahead": 0}, "needs states_ahead"),
    ],
)
def test_a_placement_that_cannot_be_is_refused_in_a_sentence(fields, said):
    with pytest.raises(ValueError, match=said):
        PlacementSpec(**fields)
