import json
import sys

import pytest

from dflashctl.cli.app import main

FILE = """\
hosts:
  trainer:
    address: 192.0.2.7
    port: 2201
    protected: true
    roles: [train]
  worker: {via: trainer}
"""


@pytest.fixture
def hosts_file(tmp_path, monkeypatch):
    monkeypatch.delenv("DFLASHCTL_HOSTS", raising=False)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.yaml"
    file.write_text(FILE)
    return file


def test_list_names_every_host_and_asks_nobody(hosts_file, capsys):
    assert main(["hosts", "list", "--hosts", str(hosts_file)]) == 0
    shown = capsys.readouterr().out
    assert "192.0.2.7:2201" in shown
    assert "worker of ssh_config via trainer" in " ".join(shown.split())


def test_list_for_machines_is_one_document(hosts_file, capsys):
    assert main(["hosts", "list", "--hosts", str(hosts_file), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["file"] == str(hosts_file)
    assert [host["name"] for host in document["hosts"]] == ["local", "trainer", "worker"]
    assert document["hosts"][1]["is_protected"] is True


def test_list_shows_the_work_folder_and_interpreter_that_commands_here_take(hosts_file, capsys):
    assert main(["hosts", "list", "--hosts", str(hosts_file), "--json"]) == 0
    local, trainer, _ = json.loads(capsys.readouterr().out)["hosts"]
    assert (local["workdir"], local["python"]) == (str(hosts_file.parent / "dflashctl-work"), sys.executable)
    assert (trainer["workdir"], trainer["python"]) == ("~/dflashctl-work", "python3")


@pytest.mark.parametrize(
    "text",
    [
        "hosts:\n  local:\n    workdir: /data\n",
        "hosts:\n  a:\n    variables: {DFLASHCTL_MARKER: x}\n",
        "hosts:\n  a: {address: x, protected: true}\n  b: {address: X, user: me}\n",
        "hosts:\n  a:\n    workdir: ~/../x\n",
    ],
)
@pytest.mark.parametrize("command", [["hosts", "list"], ["hosts", "check"], ["train", "list", "--all"]])
def test_file_that_cannot_be_is_told_with_its_line_before_anything_is_asked(hosts_file, capsys, text, command):
    hosts_file.write_text(text)
    assert main([*command, "--hosts", str(hosts_file)]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"dflashctl: {hosts_file}:3: hosts.") and shown.out == ""


def test_list_takes_the_file_from_the_environment(hosts_file, capsys, monkeypatch):
    monkeypatch.setenv("DFLASHCTL_HOSTS", str(hosts_file))
    assert main(["hosts", "list"]) == 0
    assert "trainer" in capsys.readouterr().out


def test_list_without_a_file_says_so(hosts_file, capsys):
    assert main(["hosts", "list"]) == 0
    shown = capsys.readouterr()
    assert "this machine" in shown.out
    assert "there is no hosts.yaml here" in shown.err


def test_wrong_key_in_the_file_is_a_sentence(hosts_file, capsys):
    hosts_file.write_text("hosts:\n  a:\n    protect: true\n")
    assert main(["hosts", "list", "--hosts", str(hosts_file)]) == 2
    assert capsys.readouterr().err == (
        f"dflashctl: {hosts_file}:3: unknown key hosts.a.protect\n  next: did you mean hosts.a.protected?\n"
    )


def test_config_check_knows_a_hosts_file_by_its_sections(hosts_file, capsys):
    assert main(["config", "check", str(hosts_file)]) == 0
    assert "is valid: hosts" in capsys.readouterr().out


def test_config_show_tells_the_origin_of_each_value_of_a_hosts_file(hosts_file, capsys):
    assert main(["config", "show", str(hosts_file), "--json"]) == 0
    values = {value["path"]: value for value in json.loads(capsys.readouterr().out)}
    assert values["hosts.trainer.port"]["origin"] == f"{hosts_file}:4"
    assert values["hosts.trainer.env"]["origin"] == "default"


def test_check_of_this_machine_tells_what_it_found(hosts_file, capsys):
    assert main(["hosts", "check", "local", "--hosts", str(hosts_file), "--json"]) == 0
    (host,) = json.loads(capsys.readouterr().out)["hosts"]
    assert host["host"] == "local" and host["is_reachable"]
    topics = {finding["topic"]: finding for finding in host["findings"]}
    assert topics["link"]["text"].startswith("this machine")
    assert str(hosts_file.parent) in topics["work folder"]["text"]


def test_check_takes_for_this_machine_what_the_file_says_of_it(hosts_file, capsys):
    hosts_file.write_text("hosts: {local: {python: /nowhere/python3, roles: [train]}}")
    (hosts_file.parent / "dflashctl-work").write_text("no folder")
    assert main(["hosts", "check", "--hosts", str(hosts_file)]) == 4
    shown = " ".join(capsys.readouterr().out.split())
    assert f"BAD work folder {hosts_file.parent}/dflashctl-work cannot be written" in shown
    assert "BAD environment local has no interpreter /nowhere/python3" in shown


def test_check_notes_secrets_that_are_not_set_here(hosts_file, capsys, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("WANDB_API_KEY", "S3cr3tValue")
    hosts_file.write_text("hosts: {local: {secrets: [HF_TOKEN, WANDB_API_KEY]}}")
    main(["hosts", "check", "--hosts", str(hosts_file)])
    shown = capsys.readouterr().out
    assert "HF_TOKEN not set in the environment here" in shown
    assert "WANDB_API_KEY" not in shown and "S3cr3tValue" not in shown


def test_check_of_a_host_that_is_not_known_gets_the_nearest(hosts_file, capsys):
    assert main(["hosts", "check", "trainr", "--hosts", str(hosts_file)]) == 2
    assert "did you mean trainer?" in capsys.readouterr().err


def test_ssh_and_its_like_are_not_given_the_secrets_of_hosts(monkeypatch):
    from dflashctl.cli.places import without_secrets
    from dflashctl.config.hosts import HostsFile, HostSpec
    from dflashctl.config.inventory import Inventory

    monkeypatch.setenv("HF_TOKEN", "hf_x")
    monkeypatch.setenv("MINE", "kept")
    given = without_secrets(Inventory(HostsFile(hosts={"a": HostSpec(secrets=("HF_TOKEN",))})))
    assert "HF_TOKEN" not in given
    assert given["MINE"] == "kept"
