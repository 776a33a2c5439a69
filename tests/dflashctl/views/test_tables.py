from dataclasses import replace
from pathlib import Path

from dflashctl.artifacts import RunRef
from dflashctl.config.schema import Resolved
from dflashctl.facts.runs import RunState
from dflashctl.stages.jobs import Site, plan_job
from dflashctl.stages.train.placing import Placing
from dflashctl.stages.train.plan import Figures
from dflashctl.views import tables
from dflashctl.views.placing import placing_rows
from dflashctl_remote.spec.data import TokenizeSpec
from dflashctl_remote.spec.events import CheckpointSaved
from dflashctl_remote.spec.manifest import FileEntry, Manifest
from dflashctl_remote.spec.parity import Parity


def placing(**changes) -> Placing:
    fields = {
        "layout": "colocated", "num_hosts": 1, "num_processes": 1, "target_gpus": (), "drafter_gpus": (),
        "num_targets": 1, "num_drafters": 1, "batches_per_share": 1, "rows_ahead": 4, "states_ahead": 2,
        "estimated_drafter_bytes": 25 * 2**30, "estimated_states_bytes": 2**30,
    }  # fmt: skip
    return Placing(**{**fields, **changes})


def training_rows(placed: Placing):
    return tables.training_figures(Figures((1, 2), 10, 8192, 512, 1.0, 100, 2.5, 7, placed), 100)


def test_dry_run_shows_argv_environment_spec_and_what_is_written(text_of):
    spec = TokenizeSpec(target="/t", input="/i", output="/o")
    plan = plan_job("tokenize", spec, Path("/j"), Site("local", "/py", Path("/b")), writes=(Path("/o"),))
    text = text_of(tables.job_plan(plan))
    for said in (" ".join(plan.job.argv), "PYTHONPATH=/b", "/o", '"input": "/i"', "nothing was started"):
        assert said in text


def test_estimates_are_called_so(text_of):
    figures = Figures((1, 2), 1_730_000_000, 8192, 512, 1.0, 100, 2.5, 7 * 2**30, placing())
    text = text_of(tables.training_figures(figures, 100))
    assert "estimated 7.0 GiB" in text
    assert "estimated 2.50" in text
    assert "1.73G parameters (1,730,000,000)" in text


def test_a_plan_shows_where_the_stages_are_and_what_waits_between_them(text_of):
    assert dict(placing_rows(placing()))["placement"] == "colocated: target and drafter on one device"
    split = placing(layout="3+1", num_targets=3, target_gpus=(0, 1, 1), drafter_gpus=(2,))
    assert dict(placing_rows(split))["placement"] == "3+1: 3 target stages on GPU 0, 1, 1 drafter on GPU 2"
    assert "3+1: 3 target stages, 1 drafter" in text_of(training_rows(replace(split, target_gpus=(), drafter_gpus=())))
    text = text_of(training_rows(placing(num_processes=8, num_hosts=2, batches_per_share=4)), width=300)
    assert "on 2 hosts, by torchrun on each (docs/scaling.md): 8 processes" in text
    assert "each takes 4 batches of a step" in text
    assert "estimated 25.0 GiB for a drafter's weights" in text
    assert "up to 4 packed rows and 2 batches of hidden states wait" in text
    assert "the stages take turns" in text_of(training_rows(placing(states_ahead=0)))


def test_runs_show_state_and_the_age_of_the_last_word(text_of, step):
    run = RunRef("mine", Path("/runs/mine"))
    saved = CheckpointSaved(step=7, path="/c", size_bytes=1, seconds_s=0.1)
    states = [
        RunState(run, "running", 100.0, step(9), saved, 7),
        RunState(RunRef("new", Path("/runs/new")), "starting", None, None, None, None),
    ]
    lines = text_of(tables.runs(states, {"local": 142.0})).splitlines()
    assert lines[1].split() == ["mine", "running", "9/100", "0.889", "25.0", "%", "step", "7", "42", "s", "ago"]
    assert lines[2].split() == ["new", "starting", "-", "-", "-", "-", "-"]


def test_tau_is_a_column_where_one_was_measured_and_marked_where_the_gate_did_not_pass(text_of, step, validated):
    good, bad, none = (RunRef(name, Path("/runs")) for name in ("good", "bad", "none"))
    differs = validated(6, tau=2.5, parity=Parity(verdict="differ", cause="mask", says="..."))
    states = [
        RunState(good, "running", 100.0, step(9), None, 7, last_validated=validated(5)),
        RunState(bad, "running", 100.0, step(9), None, 7, last_validated=differs),
        RunState(none, "running", 100.0, step(9), None, 7),
    ]
    lines = text_of(tables.runs(states, {})).splitlines()
    assert "tau" in lines[0].split()
    assert [line.split()[6] for line in lines[1:4]] == ["3.21", "2.50!", "-"]
    assert "tau" not in text_of(tables.runs(states[2:], {}))


def test_values_are_written_as_in_yaml(text_of):
    values = [Resolved("train", "train.a", None, "default"), Resolved("train", "train.b", (1, True), "--set")]
    text = text_of(tables.resolved_values(values))
    assert "null" in text
    assert "[1, true]" in text


def test_long_keys_are_never_cut(text_of):
    path = "train.drafter." + "x" * 60
    text = text_of(tables.resolved_values([Resolved("train", path, 1, "default")]), width=50)
    assert "..." not in text and "\u2026" not in text


def test_manifest_shows_files_sizes_and_sums(text_of):
    content = Manifest(
        kind="checkpoint",
        created_at_s=0.0,
        bundle_sha="b",
        files=(FileEntry(path="model.safetensors", size_bytes=2**20, sha256="0123456789abcdef" * 4),),
        about={},
    )
    text = text_of(tables.manifest("/c", content))
    assert "model.safetensors" in text and "1.0 MiB" in text and "0123456789abcdef" in text


def test_dataset_that_lost_rows_says_so(text_of, dataset_info):
    assert "skipped" not in text_of(tables.dataset(dataset_info))
    worse = dataset_info.model_copy(update={"num_skipped_rows": 3, "num_truncated": 2})
    text = text_of(tables.dataset(worse))
    assert "3 bad rows" in text and "2 documents" in text
