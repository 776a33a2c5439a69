"""The commands that start no job, from the arguments to the exit code."""

import json

import pytest

from dflashctl.cli.app import main

RUN = "train:\n  target: t\n  dataset: d\n  num_steps: 10\n"


@pytest.fixture
def run_file(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(RUN)
    return file


@pytest.fixture
def reports(tmp_path, eval_report):
    def make(*headlines):
        paths = []
        for number, headline in enumerate(headlines):
            path = tmp_path / f"{number}.json"
            path.write_text(eval_report(headline=headline).model_dump_json())
            paths.append(str(path))
        return paths

    return make


def test_config_check_says_which_sections_are_there(run_file, capsys):
    assert main(["config", "check", str(run_file)]) == 0
    assert "is valid: train" in capsys.readouterr().out


def test_config_check_of_a_wrong_key_exits_2(run_file, capsys):
    run_file.write_text(RUN + "  sed: 1\n")
    assert main(["config", "check", str(run_file)]) == 2
    assert "did you mean train.seed?" in capsys.readouterr().err


def test_config_show_gives_machines_the_origin_of_each_value(run_file, capsys):
    assert main(["config", "show", str(run_file), "--set", "train.seed=4", "--json"]) == 0
    values = {value["path"]: value for value in json.loads(capsys.readouterr().out)}
    assert (values["train.seed"]["value"], values["train.seed"]["origin"]) == (4, "--set")


def test_unknown_option_exits_2_and_points_to_the_help(capsys):
    assert main(["train", "list", "--bogus"]) == 2
    assert "dflashctl train list --help" in capsys.readouterr().err


def test_unknown_host_exits_2_and_names_the_nearest(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DFLASHCTL_HOSTS", raising=False)
    assert main(["train", "list", "--host", "kpro7"]) == 2
    assert "there is no hosts.yaml" in capsys.readouterr().err
    (tmp_path / "hosts.yaml").write_text("hosts:\n  kpro6:\n    ssh: kpro6\n")
    assert main(["train", "start", "--host", "kpro7", "--target", "/t", "--dataset", "/d", "--steps", "3"]) == 2
    assert "did you mean kpro6?" in capsys.readouterr().err


def test_empty_work_folder_has_no_runs(tmp_path, capsys):
    assert main(["train", "list", "--workdir", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize("command", ["watch", "logs", "stop", "resume"])
def test_run_that_is_not_there_exits_2_and_names_those_that_are(tmp_path, command, capsys):
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "run.json").write_text("{}")
    assert main(["train", command, "yours", "--workdir", str(tmp_path)]) == 2
    assert "(there: mine)" in capsys.readouterr().err


def test_tokenize_dry_run_prints_the_arguments_and_writes_nothing(tmp_path, capsys):
    words = ["data", "tokenize", "--target", "/t", "--input", "/i", "--output", "/o"]
    assert main([*words, "--workdir", str(tmp_path), "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["job"]["argv"][1:3] == ["-m", "dflashctl_remote.entry.tokenize"]
    assert json.loads(plan["spec_json"])["max_length_tokens"] == 4096
    assert list(tmp_path.iterdir()) == []


def test_missing_required_value_exits_2_and_says_how_to_give_it(tmp_path, capsys):
    assert main(["data", "tokenize", "--target", "/t", "--workdir", str(tmp_path)]) == 2
    assert "--set data.tokenize.input=" in capsys.readouterr().err


def test_a_public_drafters_folder_is_told_how_it_is_named(tmp_path, capsys):
    folder = tmp_path / "public"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    words = ["eval", "run", "--target", "/t", "--prompts", "/p", "--checkpoint", str(folder)]
    assert main(words) == 5
    assert "--public" in capsys.readouterr().err
    assert main([*words, "--public", "--dry-run", "--json", "--workdir", str(tmp_path / "work")]) == 0
    told = "".join(c for c in capsys.readouterr().out if c not in "\\ ")
    assert '"is_public":true' in told


def test_evaluation_of_an_incomplete_checkpoint_exits_5(tmp_path, capsys):
    (tmp_path / "checkpoint").mkdir()
    words = ["eval", "run", "--target", "/t", "--prompts", "/p", "--checkpoint", str(tmp_path / "checkpoint")]
    assert main([*words, "--workdir", str(tmp_path)]) == 5
    assert "not a complete checkpoint" in capsys.readouterr().err


def test_training_on_a_folder_that_is_no_dataset_exits_5(tmp_path, capsys):
    size = {"num_hidden_layers": 4, "hidden_size": 8, "intermediate_size": 16, "vocab_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(size))
    words = ["train", "plan", "--target", str(tmp_path), "--dataset", str(tmp_path), "--steps", "3"]
    assert main(words) == 5
    assert "not a complete dataset" in capsys.readouterr().err


def test_comparison_exits_7_only_if_asked_and_worse(reports, capsys):
    better, worse = reports(2.5, 2.0)
    assert main(["eval", "compare", better, worse]) == 0
    assert main(["eval", "compare", worse, better, "--fail-if-worse", "0.02"]) == 0
    assert main(["eval", "compare", better, worse, "--fail-if-worse", "0.02"]) == 7
    assert "fell by 20.0%, more than 2.0%" in capsys.readouterr().err


def test_debug_may_stand_anywhere(tmp_path, capsys):
    assert main(["train", "watch", "none", "--workdir", str(tmp_path), "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_demo_of_a_folder_that_is_no_model_exits_2(tmp_path, capsys):
    assert main(["demo", "--target", str(tmp_path), "--workdir", str(tmp_path / "w")]) == 2
    assert "not the folder of a Hugging Face causal LM" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--gpu", "--restarts"])
def test_what_needs_a_supervisor_is_refused_without_one(tmp_path, option, capsys):
    words = ["train", "start", "--target", "/t", "--dataset", "/d", "--steps", "3", "--workdir", str(tmp_path)]
    assert main([*words, option, "1"]) == 2
    assert f"{option} needs a supervisor" in capsys.readouterr().err
