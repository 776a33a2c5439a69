import json

import pytest

from dflashctl.config.load import Override
from dflashctl.config.run import load_sections
from dflashctl.errors import ConfigError
from dflashctl.stages.demo import apply
from dflashctl.stages.demo.plan import DemoSettings, plan_demo
from dflashctl.stages.demo.target import TargetFacts


@pytest.fixture
def plan(tmp_path):
    def make(**changes):
        fields = {
            "target": apply.DEMO_TARGET,
            "target_facts": TargetFacts(4, None),
            "workdir": tmp_path / "demo",
            "prompts": apply.HELDOUT_PROMPTS,
            "num_prompts": 8,
            "num_steps": 30,
            "responses": apply.TRAIN_PROMPTS,
            "train_prompts": tmp_path / "demo" / "prompts-train.jsonl",
        }
        return plan_demo(DemoSettings(**{**fields, **changes}))

    return make


def test_run_yaml_of_the_demo_is_valid(plan):
    made = plan()
    apply.prepare(made, is_fresh=False)
    assert {value.section for value in load_sections(made.run_file)} == {
        "data.tokenize", "train", "evaluate", "deploy", "bench",
    }  # fmt: skip


def test_same_command_again_goes_on(plan):
    made = plan()
    report = apply.prepare(made, is_fresh=False)
    apply.write_demo(made, report.model_copy(update={"num_steps": 30}))
    assert apply.prepare(made, is_fresh=False).num_steps == 30


def test_other_settings_are_refused_and_nothing_is_changed(plan):
    apply.prepare(plan(), is_fresh=False)
    text = plan().run_file.read_text()
    with pytest.raises(ConfigError, match="made with other settings") as caught:
        apply.prepare(plan(overrides=(Override("train.seed", 1, "--set"),)), is_fresh=False)
    assert "--fresh" in caught.value.hint
    assert plan().run_file.read_text() == text


def test_fresh_removes_an_earlier_demo(plan):
    made = plan()
    apply.prepare(made, is_fresh=False)
    (made.settings.workdir / "old").write_text("")
    apply.prepare(made, is_fresh=True)
    assert not (made.settings.workdir / "old").exists()


@pytest.mark.parametrize("is_fresh", [False, True])
def test_folder_of_something_else_is_never_touched(plan, is_fresh):
    made = plan()
    made.settings.workdir.mkdir(parents=True)
    (made.settings.workdir / "thesis.txt").write_text("precious")
    with pytest.raises(ConfigError, match="was not made by the demo"):
        apply.prepare(made, is_fresh=is_fresh)
    assert (made.settings.workdir / "thesis.txt").read_text() == "precious"


def test_other_target_gets_a_few_of_the_shipped_prompts(plan):
    made = plan(responses=None)
    apply.prepare(made, is_fresh=False)
    lines = made.settings.train_prompts.read_text().splitlines()
    assert len(lines) == apply.NUM_GENERATE_PROMPTS
    assert json.loads(lines[0])["messages"][-1]["role"] == "user"


def test_peak_memory_is_the_highest_of_all_steps(plan, step):
    made = plan()
    made.run_folder.mkdir(parents=True)
    lines = [step(1, peak_memory_bytes=5), step(2, peak_memory_bytes=9), step(3, peak_memory_bytes=7)]
    (made.run_folder / "events.jsonl").write_text("".join(s.model_dump_json() + "\n" for s in lines))
    training = apply.read_training(made)
    assert (training.num_steps, training.peak_memory_bytes) == (3, 9)
