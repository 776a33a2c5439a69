from pathlib import Path

import pytest

from dflashctl.config.load import Override
from dflashctl.errors import ConfigError
from dflashctl.stages.demo.plan import DemoSettings, plan_demo
from dflashctl.stages.demo.target import TargetFacts


def settings(tmp_path, **changes):
    fields = {
        "target": Path("/target"),
        "target_facts": TargetFacts(4, None),
        "workdir": tmp_path,
        "prompts": Path("/heldout.jsonl"),
        "num_prompts": 8,
        "num_steps": 30,
        "responses": Path("/responses.jsonl"),
        "train_prompts": tmp_path / "prompts-train.jsonl",
    }
    return DemoSettings(**{**fields, **changes})


def names(plan):
    return [stage.name for stage in plan.stages]


def test_stages_are_our_own_commands_in_order(tmp_path):
    assert names(plan_demo(settings(tmp_path))) == [
        "data tokenize",
        "data inspect",
        "train start",
        "eval run",
        "eval run",
        "deploy up",
        "bench",
        "status",
        "deploy down",
    ]


def test_what_costs_nothing_is_shown_each_time(tmp_path):
    stages = {stage.name: stage for stage in plan_demo(settings(tmp_path)).stages}
    assert stages["status"].done_when is None
    assert not stages["deploy down"].is_done


def test_a_finished_benchmark_needs_no_server(tmp_path):
    plan = plan_demo(settings(tmp_path))
    plan.benchmark.mkdir(parents=True)
    (plan.benchmark / "run.json").write_text("{}")
    assert [stage.name for stage in plan.stages if stage.is_done] == ["deploy up", "bench"]


def test_other_target_answers_first(tmp_path):
    plan = plan_demo(settings(tmp_path, responses=None))
    assert names(plan)[0] == "data generate"
    assert plan.run_yaml["data"]["generate"]["output"] == plan.run_yaml["data"]["tokenize"]["input"]


def test_finished_stage_is_known_by_what_it_wrote_last(tmp_path):
    stage = plan_demo(settings(tmp_path)).stages[0]
    assert not stage.is_done
    stage.done_when.parent.mkdir(parents=True)
    stage.done_when.write_text("{}")
    assert stage.is_done


def test_run_that_was_broken_off_is_resumed_not_started(tmp_path):
    train = plan_demo(settings(tmp_path)).stages[2]
    assert train.next_command[:2] == ("train", "start")
    train.resume_when.parent.mkdir(parents=True)
    train.resume_when.write_text("{}")
    assert train.next_command[:2] == ("train", "resume")


def test_shallow_target_is_tapped_everywhere_but_at_its_last_layer(tmp_path):
    plan = plan_demo(settings(tmp_path, target_facts=TargetFacts(4, None)))
    assert plan.run_yaml["train"]["drafter"]["tap_layers"] == [0, 1, 2]


def test_deep_target_keeps_the_even_spacing_rule(tmp_path):
    plan = plan_demo(settings(tmp_path, target_facts=TargetFacts(30, 16, "spare")))
    assert "tap_layers" not in plan.run_yaml["train"]["drafter"]


def test_steps_set_by_override_decide_when_training_is_done(tmp_path):
    plan = plan_demo(settings(tmp_path, overrides=(Override("train.num_steps", 7, "--set"),)))
    assert plan.stages[2].done_when.parent.name == "step-00000007"


def test_steps_that_are_no_number_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="wanted a positive integer"):
        plan_demo(settings(tmp_path, overrides=(Override("train.num_steps", "many", "--set"),)))


def test_evaluation_never_reads_the_training_prompts(tmp_path):
    plan = plan_demo(settings(tmp_path, responses=None))
    assert plan.run_yaml["evaluate"]["prompts"] == "/heldout.jsonl"
    assert plan.run_yaml["data"]["generate"]["prompts"] != plan.run_yaml["evaluate"]["prompts"]
