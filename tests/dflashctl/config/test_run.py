import pytest

from dflashctl.config.load import Override
from dflashctl.config.run import load_section, load_sections
from dflashctl.errors import ConfigError
from dflashctl_remote.spec.train import TrainSpec

MINIMAL = "train:\n  target: t\n  dataset: d\n  num_steps: 10\n"


@pytest.fixture
def run_file(tmp_path):
    def write(text):
        file = tmp_path / "run.yaml"
        file.write_text(text)
        return file

    return write


def test_defaults_fill_what_the_file_leaves_out(run_file):
    spec = load_section("train", TrainSpec, run_file(MINIMAL))
    assert spec == TrainSpec(target="t", dataset="d", num_steps=10)


def test_precedence_is_defaults_file_overrides(run_file):
    file = run_file(MINIMAL + "  seed: 5\n")
    assert load_section("train", TrainSpec, file).seed == 5
    assert load_section("train", TrainSpec, file, (Override("train.seed", 6, "--set"),)).seed == 6


def test_fallback_gives_way_to_the_file(run_file):
    file = run_file(MINIMAL + "  seed: 5\n")
    fallbacks = (Override("train.seed", 9, "default"), Override("train.device", "cpu", "default"))
    spec = load_section("train", TrainSpec, file, fallbacks=fallbacks)
    assert (spec.seed, spec.device) == (5, "cpu")


def test_unknown_key_gives_file_line_path_and_the_nearest(run_file):
    file = run_file(MINIMAL + "  optim:\n    learing_rate: 1.0e-3\n")
    with pytest.raises(ConfigError, match=r"run\.yaml:6: unknown key train\.optim\.learing_rate") as caught:
        load_section("train", TrainSpec, file)
    assert caught.value.hint == "did you mean train.optim.learning_rate?"


def test_unknown_section_lists_those_that_are_known(run_file):
    with pytest.raises(ConfigError, match="unknown key zebra") as caught:
        load_section("train", TrainSpec, run_file(MINIMAL + "zebra: 1\n"))
    assert caught.value.hint == "known there: data, train, evaluate, deploy, bench"


def test_unknown_key_on_the_command_line_names_the_option():
    with pytest.raises(ConfigError, match=r"--set: unknown key train\.sed"):
        load_section("train", TrainSpec, None, (Override("train.sed", 1, "--set"),))


def test_value_of_the_wrong_kind_gives_its_line(run_file):
    with pytest.raises(ConfigError, match=r"run\.yaml:4: train\.num_steps: .*found 'many'"):
        load_section("train", TrainSpec, run_file(MINIMAL.replace("10", "many")))


def test_missing_value_says_how_to_give_it(run_file):
    with pytest.raises(ConfigError, match=r"train\.dataset is not set in .*run\.yaml") as caught:
        load_section("train", TrainSpec, run_file(MINIMAL.replace("  dataset: d\n", "")))
    assert "--set train.dataset=" in caught.value.hint


def test_section_that_is_a_bare_value_is_refused(run_file):
    with pytest.raises(ConfigError, match="data: wanted keys below it, found 3"):
        load_sections(run_file("data: 3\n"))


def test_one_incomplete_section_does_not_stop_another(run_file):
    file = run_file(MINIMAL + "evaluate:\n  target: t\n")
    assert load_section("train", TrainSpec, file).num_steps == 10


def test_resolved_values_tell_where_each_comes_from(run_file):
    file = run_file(MINIMAL)
    values = {v.path: v for v in load_sections(file, (Override("train.optim.eps", 1e-6, "--set"),))}
    assert values["train.num_steps"].origin == f"{file}:4"
    assert values["train.optim.eps"].origin == "--set"
    assert values["train.optim.clip_norm"].origin == "default"
    assert values["train.optim.clip_norm"].value == 1.0


def test_values_that_do_not_go_together_are_refused_by_a_sentence_alone(run_file):
    file = run_file(MINIMAL + "  optim:\n    accumulation: 4\n  placement:\n    ranks: 3\n")
    with pytest.raises(ConfigError) as caught:
        load_section("train", TrainSpec, file)
    said = "train: optim.accumulation 4 cannot be shared by the 3 processes of this placement; use a multiple of 3"
    assert caught.value.message.endswith(said)
