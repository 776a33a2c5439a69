import pytest

from dflashctl.config.load import Override, load_tree, parse_set
from dflashctl.errors import ConfigError


def test_set_values_are_read_as_yaml():
    assert parse_set("train.optim.betas=[0.9, 0.98]").value == [0.9, 0.98]
    assert parse_set("train.seed=3").value == 3
    assert parse_set("data.tokenize.skip_bad=true").value is True


def test_set_without_a_value_says_how_it_is_written():
    with pytest.raises(ConfigError, match="wanted KEY=VALUE"):
        parse_set("train.seed")


def test_every_value_remembers_its_line(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("train:\n  seed: 1\n  optim:\n    eps: 1.0e-7\n")
    tree = load_tree(file, ())
    assert tree.origin_of(("train", "optim", "eps")) == f"{file}:4"
    assert tree.origin_of(("train", "device")) == "default"


def test_override_wins_over_the_file_and_says_so(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("train: {seed: 1}\n")
    tree = load_tree(file, (Override("train.seed", 2, "--set"),))
    assert tree.values["train"]["seed"] == 2
    assert tree.origin_of(("train", "seed")) == "--set"


def test_later_override_wins():
    tree = load_tree(None, (Override("train.seed", 1, "--set"), Override("train.seed", 2, "--seed")))
    assert tree.values == {"train": {"seed": 2}}


def test_override_below_a_plain_value_is_refused(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("train: {seed: 1}\n")
    with pytest.raises(ConfigError, match="nothing below it"):
        load_tree(file, (Override("train.seed.deep", 2, "--set"),))


def test_key_written_twice_is_an_error_with_its_line(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("train:\n  seed: 1\n  seed: 2\n")
    with pytest.raises(ConfigError, match=r"run\.yaml:3: train\.seed is written twice"):
        load_tree(file, ())


@pytest.mark.parametrize(
    ("text", "said"),
    [("train: [1, 2", r"run\.yaml:\d+: not valid YAML"), ("- 1\n- 2\n", "wanted sections"), ("7", "wanted sections")],
)
def test_file_that_is_no_run_file_is_named(tmp_path, text, said):
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_tree(file, ())


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere\.yaml"):
        load_tree(tmp_path / "nowhere.yaml", ())


def test_empty_file_is_all_defaults(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("")
    assert load_tree(file, ()).values == {}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"train:\n  seed: \xae\n", "not UTF-8"),
        (b"a: &a [*a]\n", "without end"),
        (b"a: " + b"[" * 3000 + b"]" * 3000, "without end"),
        (b"a:\n  b: 2020-13-45\n", "run.yaml:2"),
        (b"a:\n  b: !!python/name:os.system\n", "run.yaml:2"),
        (b"a: \x01\n", "not valid YAML"),
    ],
)
def test_file_that_yaml_chokes_on_is_named(tmp_path, content, said):
    file = tmp_path / "run.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        load_tree(file, ())


def test_set_value_that_yaml_chokes_on_is_named():
    with pytest.raises(ConfigError, match="not readable"):
        parse_set("train.seed=2020-13-45")
