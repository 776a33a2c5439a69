from pathlib import Path

import pytest

from dflashctl.artifacts import RunRef
from dflashctl.errors import ConfigError
from dflashctl.stages.jobs import Site
from dflashctl.stages.train.plan import figures_of, num_drafter_parameters, plan_train
from dflashctl.targets import TargetSize
from dflashctl.transport.base import Git
from dflashctl_remote.spec.drafter import DrafterSpec
from dflashctl_remote.spec.errors import BadInput
from dflashctl_remote.spec.train import BatchSpec, OptimSpec, RunRecord, TrainSpec

QWEN36_27B = TargetSize(num_layers=64, hidden_size=5120, intermediate_size=17408, vocab_size=248320)


def spec_of(**changes):
    return TrainSpec(**{"target": "/t", "dataset": "/d", "num_steps": 10, **changes})


def test_public_drafter_of_the_27b_target_has_1730_million_parameters():
    assert round(num_drafter_parameters(DrafterSpec(), QWEN36_27B, 5) / 1e6) == 1730


def test_figures_follow_from_the_spec(dataset_info):
    spec = spec_of(
        batch=BatchSpec(tokens_per_batch=4096, block_ratio=2.0), optim=OptimSpec(accumulation=4), dtype="float32"
    )
    figures = figures_of(spec, QWEN36_27B, dataset_info)
    assert figures.tap_layers == (1, 16, 31, 46, 61)
    assert figures.anchors_per_batch == 512
    assert figures.block_ratio == 2.0
    assert figures.context_tokens_per_step == 4 * 4096
    assert figures.num_batches == 40
    assert figures.estimated_epochs == pytest.approx(40 * 4096 / 36_738)
    assert figures.estimated_checkpoint_bytes == figures.num_drafter_parameters * 16


def test_a_run_that_is_given_a_gpu_is_reckoned_in_bf16(dataset_info):
    on_gpu = figures_of(spec_of(), QWEN36_27B, dataset_info, num_gpus=1)
    assert on_gpu.estimated_checkpoint_bytes == on_gpu.num_drafter_parameters * 14
    assert figures_of(spec_of(), QWEN36_27B, dataset_info).estimated_checkpoint_bytes == (
        on_gpu.num_drafter_parameters * 16
    )


def test_batch_without_room_for_one_block_is_refused(dataset_info):
    spec = spec_of(batch=BatchSpec(tokens_per_batch=16, block_ratio=0.1))
    with pytest.raises(ConfigError, match="no room for one block of 16"):
        figures_of(spec, QWEN36_27B, dataset_info)


def test_plan_keeps_spec_and_origin_of_the_code_in_the_record(dataset_info):
    plan = plan_train(
        spec_of(),
        RunRef("r", Path("/w/runs/r")),
        Site("local", "/py", Path("/bundle")),
        target=QWEN36_27B,
        dataset=dataset_info,
        bundle_sha="b" * 64,
        git=Git("c" * 40, is_dirty=True),
        now_s=5.0,
    )
    record = RunRecord.model_validate_json(plan.job.spec_json)
    assert record == plan.record
    assert (record.bundle_sha, record.git_sha, record.is_git_dirty) == ("b" * 64, "c" * 40, True)
    assert plan.job.spec_path == Path("/w/runs/r/run.json")


def test_taps_that_the_target_does_not_have_are_refused_before_anything_is_started(dataset_info):
    few = TargetSize(num_layers=4, hidden_size=8, intermediate_size=16, vocab_size=32)
    with pytest.raises(BadInput, match="must be rising"):
        figures_of(TrainSpec(target="/t", dataset="/d", num_steps=1), few, dataset_info)
