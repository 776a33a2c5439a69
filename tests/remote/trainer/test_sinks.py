import json
import struct
import sys
import threading
from pathlib import Path

import pytest

from dflashctl_remote.spec.events import Event, EventLog, Notice, Progress, Queue, Step
from dflashctl_remote.spec.sinks import SinksSpec
from dflashctl_remote.trainer.sinks import CAPACITY, EventsWithSinks, TensorBoardSink, WandbSink, figures, open_sinks

LIMIT_S = 20.0


def step_event(step: int, **changes) -> Step:
    fields = {
        "at_s": 1000.0 + step,
        "step": step,
        "num_steps": 10,
        "batch": 2 * step,
        "epoch": 0.5,
        "loss": 6.0 / step,
        "accuracy": 0.25,
        "accuracy_by_slot": (0.5, 0.125),
        "learning_rate": 1e-3,
        "grad_norm": 1.5,
        "num_anchors": 8,
        "num_scored_slots": 24,
        "context_tokens_per_s": 100.0,
        "block_ratio": 1.0,
        "peak_memory_bytes": 0,
        "queues": (Queue(name="rows", depth=3, capacity=4),),
    }
    return Step(**fields | changes)


class Kept:
    """A sink that keeps what it is given."""

    name = "kept"

    def __init__(self):
        self.written = []
        self.num_closed = 0

    def write(self, step, figures, at_s):
        self.written.append((step, figures, at_s))

    def close(self):
        self.num_closed += 1


class Log:
    def __init__(self):
        self.events: list[Event] = []

    def emit(self, event):
        self.events.append(event)

    @property
    def notices(self):
        return [event.message for event in self.events if isinstance(event, Notice)]


def test_figures_are_the_numbers_of_an_event_named_by_their_place():
    numbers = figures(step_event(2))
    assert numbers["step/loss"] == 3.0
    assert (numbers["step/accuracy_by_slot/1"], numbers["step/accuracy_by_slot/2"]) == (0.5, 0.125)
    assert (numbers["step/queues/rows/depth"], numbers["step/queues/rows/capacity"]) == (3.0, 4.0)
    assert "step/step" not in numbers
    assert "step/at_s" not in numbers


def test_texts_are_no_figures():
    assert figures(Notice(message="7 rows skipped")) == {}


def test_a_sink_gets_every_event_in_order_with_its_step_and_time():
    sink = Kept()
    with EventsWithSinks(Log(), [sink]) as events:
        events.emit(step_event(1))
        events.emit(Progress(what="validation", done=1, total=2, unit="prompts", at_s=1001.5))
        events.emit(step_event(2))
    assert [(step, at_s) for step, _, at_s in sink.written] == [(1, 1001.0), (1, 1001.5), (2, 1002.0)]
    assert sink.written[1][1] == {"progress/done": 1.0, "progress/total": 2.0}
    assert sink.num_closed == 1


def test_the_log_gets_what_it_would_get_without_sinks():
    log, emitted = Log(), [step_event(1), Notice(message="n"), step_event(2)]
    with EventsWithSinks(log, [Kept(), Kept()]) as events:
        for event in emitted:
            events.emit(event)
    assert log.events == emitted


def test_a_sink_that_fails_is_told_of_once_closed_and_asked_no_more():
    class Failing(Kept):
        def write(self, step, figures, at_s):
            super().write(step, figures, at_s)
            raise ConnectionError("no route\nto the service")

    failing, good, log = Failing(), Kept(), Log()
    with EventsWithSinks(log, [failing, good]) as events:
        for step in range(1, 6):
            events.emit(step_event(step))
    assert len(failing.written) == 1
    assert failing.num_closed == 1
    assert log.notices == ["kept failed and was closed: ConnectionError: no route to the service; the run goes on"]
    assert [step for step, _, _ in good.written] == [1, 2, 3, 4, 5]


def test_a_sink_that_fails_at_its_end_is_told_of():
    class Failing(Kept):
        def close(self):
            raise OSError("disk full")

    log = Log()
    with EventsWithSinks(log, [Failing()]) as events:
        events.emit(step_event(1))
    assert log.notices == [
        "kept failed and was closed: OSError: disk full; the run goes on",
        "kept could not be closed either: OSError: disk full",
    ]


def test_a_sink_that_hangs_loses_events_and_holds_nobody_up():
    class Hanging(Kept):
        def write(self, step, figures, at_s):
            is_in.set()
            may_go.wait(LIMIT_S)

    is_in, may_go, log = threading.Event(), threading.Event(), Log()
    events = EventsWithSinks(log, [Hanging()], close_limit_s=0.0)
    events.emit(step_event(1))
    assert is_in.wait(LIMIT_S)
    for step in range(2, CAPACITY + 5):
        events.emit(step_event(step))
    events.close()
    may_go.set()
    assert log.notices == [
        "kept did not end within 0 s and was left behind",
        "kept was too slow for 3 events; events.jsonl has them",
    ]


def test_no_sinks_are_the_default(tmp_path):
    log = Log()
    with open_sinks(SinksSpec(), tmp_path, "run", {}, log) as events:
        events.emit(step_event(1))
    assert log.events == [step_event(1)]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["tensorboard", "wandb"])
def test_a_sink_whose_package_is_missing_is_told_of_and_left_out(kind, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, kind, None)
    spec = SinksSpec(tensorboard=True) if kind == "tensorboard" else SinksSpec(wandb="offline")
    log = Log()
    with open_sinks(spec, tmp_path, "run", {}, log) as events:
        events.emit(step_event(1))
    (notice,) = log.notices
    assert notice.startswith(f"no {kind}: ")
    assert notice.endswith(f"install dflashctl[{kind}] in the run's environment")


def test_a_sink_that_cannot_be_opened_is_told_of_and_left_out(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    (tmp_path / "tensorboard").write_text("a file where the folder should be")
    log = Log()
    with open_sinks(SinksSpec(tensorboard=True), tmp_path, "run", {}, log) as events:
        events.emit(step_event(1))
    assert log.notices[0].startswith("no tensorboard: it could not be opened: ")


def test_events_jsonl_is_the_same_beside_sinks(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    with EventsWithSinks(log, [Kept()]) as events:
        events.emit(step_event(1))
    log.close()
    assert json.loads((tmp_path / "events.jsonl").read_text())["loss"] == 6.0


@pytest.mark.filterwarnings("default")
def test_tensorboard_files_hold_the_figures(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with EventsWithSinks(Log(), [TensorBoardSink(tmp_path)]) as events:
        for step in (1, 2, 3):
            events.emit(step_event(step))
    read = EventAccumulator(str(tmp_path)).Reload()
    assert [(point.step, point.value) for point in read.Scalars("step/loss")] == [(1, 6.0), (2, 3.0), (3, 2.0)]
    assert [point.wall_time for point in read.Scalars("step/loss")] == [1001.0, 1002.0, 1003.0]
    assert len(read.Scalars("step/accuracy_by_slot/2")) == 3


@pytest.mark.filterwarnings("default")
def test_wandb_offline_files_hold_the_figures(tmp_path: Path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed")
    import wandb
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    # A proxy that isn't there: whatever would go out fails.
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    sink = WandbSink(tmp_path, "run-1", {"seed": 5}, mode="offline", project="p")
    log = Log()
    with EventsWithSinks(log, [sink]) as events:
        for step in (1, 2, 3):
            events.emit(step_event(step))
    wandb.teardown()
    assert log.notices == []
    (file,) = tmp_path.glob("wandb/offline-run-*/run-run-1.wandb")
    losses, settings = [], {}
    for data in wandb_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        settings |= {item.key: item.value_json for item in record.run.config.update}
        losses += [json.loads(item.value_json) for item in record.history.item if "step/loss" in item.nested_key]
    assert losses == [6.0, 3.0, 2.0]
    assert settings["seed"] == "5"


def wandb_records(content: bytes) -> list[bytes]:
    """Of a .wandb file of a single block: 7 bytes of header, then checksum (4), length (2), kind (1, whole), data."""
    assert content[:4] == b":W&B"
    assert len(content) < 32768
    records, at = [], 7
    while at + 7 <= len(content):
        length, kind = struct.unpack_from("<HB", content, at + 4)
        assert kind == 1
        records.append(content[at + 7 : at + 7 + length])
        at += 7 + length
    return records
