"""Every choice of the objective, and a warm start, in a whole run: trained, killed and resumed."""

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dflashctl_remote.spec.errors import BadInput
from dflashctl_remote.spec.events import Event, EventLog, Step
from dflashctl_remote.spec.manifest import read_manifest, sha256_of
from dflashctl_remote.spec.objective import ObjectiveSpec
from dflashctl_remote.spec.placement import PlacementSpec
from dflashctl_remote.spec.train import RunRecord
from dflashctl_remote.trainer.loop import Outcome, train


class Killed(BaseException):
    """Stands for SIGKILL inside one process: nothing of the trainer catches it."""


class KillingLog(EventLog):
    """Dies after an optimizer step; None: never."""

    def __init__(self, path: Path, after: int | None) -> None:
        super().__init__(path)
        self._after = after

    def emit(self, event: Event) -> None:
        super().emit(event)
        if isinstance(event, Step) and event.step == self._after:
            raise Killed


def run(record: RunRecord, folder: Path, kill_after: int | None = None) -> Outcome:
    folder.mkdir(exist_ok=True)
    with closing(KillingLog(folder / "events.jsonl", kill_after)) as events:
        return train(record, folder, events)


def events_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def losses(folder: Path) -> dict[int, float]:
    return {event["step"]: event["loss"] for event in events_of(folder) if event["kind"] == "step"}


@pytest.mark.parametrize(
    "chosen",
    [
        {"loss": "soft_kl", "temperature": 2.0},
        {"weighting": "d_pace"},
        {"loss": "soft_kl", "weighting": "streak", "streak_alpha": 2.0},
        {"confidence_weight": 0.2, "weighting": "d_pace"},
        {"context_noise": "uniform", "context_noise_std": 0.2, "context_noise_end_std": 0.01},
    ],
    ids=lambda chosen: "-".join(map(str, chosen.values())),
)
def test_a_killed_run_resumes_to_the_bit_whatever_it_minimises(make_record, tmp_path, chosen):
    record = make_record(objective=ObjectiveSpec(**chosen), num_steps=5)
    run(record, tmp_path / "whole")
    with pytest.raises(Killed):
        run(record, tmp_path / "broken", kill_after=4)
    run(record, tmp_path / "broken")
    assert losses(tmp_path / "broken") == losses(tmp_path / "whole")


@pytest.mark.parametrize(
    "chosen",
    [
        {"loss": "soft_kl", "confidence_weight": 0.3},
        {"weighting": "d_pace", "context_noise_std": 0.1, "context_noise_end_std": 0.01},
    ],
    ids=lambda chosen: "-".join(map(str, chosen.values())),
)
def test_two_targets_and_two_drafters_learn_what_one_of_each_learns(make_record, tmp_path, chosen):
    record = make_record(objective=ObjectiveSpec(**chosen), num_steps=4)
    split = record.train.model_copy(update={"placement": PlacementSpec(layout="2+2")})
    run(record, tmp_path / "one")
    run(record.model_copy(update={"train": split}), tmp_path / "split")
    assert list(losses(tmp_path / "split").values()) == pytest.approx(list(losses(tmp_path / "one").values()), rel=1e-5)


def test_a_confidence_head_is_trained_and_lies_where_no_engine_looks(make_record, tmp_path):
    run(make_record(objective=ObjectiveSpec(confidence_weight=0.5), num_steps=3), tmp_path)
    run(make_record(num_steps=3), tmp_path / "without")
    head = load_file(tmp_path / "checkpoints/step-00000003/confidence/head.safetensors")
    assert head["weight"].any()
    last = [folder / "checkpoints/step-00000003/model.safetensors" for folder in (tmp_path, tmp_path / "without")]
    assert load_file(last[0]).keys() == load_file(last[1]).keys()
    assert not (tmp_path / "without/checkpoints/step-00000003/confidence").exists()


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("trained")


@pytest.fixture
def source(trained, make_record) -> Path:
    """A checkpoint of an earlier run."""
    if not (trained / "checkpoints").exists():
        run(make_record(num_steps=2), trained)
    return trained / "checkpoints/step-00000002"


def test_a_warm_start_begins_with_the_weights_of_the_folder_and_says_whose(make_record, source, tmp_path):
    run(make_record(num_steps=1, warm_start=str(source)), tmp_path)
    wanted, found = load_file(source / "model.safetensors"), tmp_path / "checkpoints/step-00000000"
    assert all(torch.equal(wanted[name], tensor) for name, tensor in load_file(found / "model.safetensors").items())
    assert read_manifest(found, "checkpoint").about["warm_start_sha256"] == sha256_of(source / "model.safetensors")
    assert any(f"begin as those of {source}" in event.get("message", "") for event in events_of(tmp_path))


def test_a_resume_does_not_look_at_the_folder_again(make_record, source, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(source, moved)
    record = make_record(num_steps=5, warm_start=str(moved))
    run(record, tmp_path / "whole")
    with pytest.raises(Killed):
        run(record, tmp_path / "broken", kill_after=4)
    shutil.rmtree(moved)
    run(record, tmp_path / "broken")
    assert losses(tmp_path / "broken") == losses(tmp_path / "whole")
    about = read_manifest(tmp_path / "broken/checkpoints/step-00000005", "checkpoint").about
    assert about["warm_start_sha256"] == sha256_of(source / "model.safetensors")


def test_a_warm_start_in_bf16_keeps_the_sources_fp32_weights_as_masters(make_record, source, tmp_path):
    run(make_record(num_steps=1, warm_start=str(source), dtype="bfloat16"), tmp_path)
    state = load_file(tmp_path / "checkpoints/step-00000000/state/optimizer.safetensors")
    for name, weight in load_file(source / "model.safetensors").items():
        assert torch.equal(state[f"master/{name}"], weight)


def test_a_warm_start_from_another_drafter_is_refused(make_record, source, tmp_path):
    record = make_record(warm_start=str(source))
    drafter = record.train.drafter.model_copy(update={"tap_layers": (0, 1, 2)})
    other = record.model_copy(update={"train": record.train.model_copy(update={"drafter": drafter})})
    with pytest.raises(BadInput, match=r"number of taps is 2, the run's 3") as caught:
        run(other, tmp_path)
    assert "drafter.tap_layers to [0, 2]" in caught.value.hint


def test_a_run_that_was_not_warm_started_says_so(make_record, source):
    assert read_manifest(source, "checkpoint").about["warm_start_sha256"] is None
