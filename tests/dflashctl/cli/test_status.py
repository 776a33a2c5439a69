import json
import os

import pytest

from dflashctl.cli.app import main
from dflashctl.cli.options import author


@pytest.mark.parametrize("words", [["--json"], ["--format", "json"]])
def test_json_is_one_document_of_facts(tmp_path, capsys, words):
    main(["note", "goal", "add", "tau of 6", "--workdir", str(tmp_path)])
    capsys.readouterr()
    assert main(["status", "--workdir", str(tmp_path), *words]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    assert document["notes"][0]["text"] == "tau of 6"
    assert [host["host"] for host in document["hosts"]] == ["local"]
    assert "--format json" in document["command"]


def test_markdown_is_printed_as_it_is(tmp_path, capsys):
    main(["note", "next", "add", "relay [bold]x[/bold] " + "long " * 60, "--workdir", str(tmp_path)])
    capsys.readouterr()
    assert main(["status", "--workdir", str(tmp_path), "--format", "md"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# Status\n")
    assert r"relay \[bold\]x\[/bold\]" in shown
    assert "long long long" in next(line for line in shown.splitlines() if "relay" in line)


def test_a_host_that_is_not_known_is_a_sentence(tmp_path, capsys):
    assert main(["status", "kpro6", "--workdir", str(tmp_path)]) == 2
    assert "host kpro6 is not known" in capsys.readouterr().err


def test_a_host_that_is_named_twice_is_shown_once(tmp_path, capsys):
    assert main(["status", "local", "local", "--json", "--workdir", str(tmp_path)]) == 0
    assert len(json.loads(capsys.readouterr().out)["hosts"]) == 1


def test_the_table_says_of_each_part_what_is_not_known(tmp_path, capsys):
    assert main(["status", "--workdir", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("not known") == 4


def test_a_note_that_is_not_there_is_a_usage_error(tmp_path, capsys):
    assert main(["note", "goal", "done", "abc", "--workdir", str(tmp_path)]) == 2
    assert "there is no open goal 'abc'" in capsys.readouterr().err


def test_a_user_without_a_name_is_a_number(monkeypatch):
    def nobody(uid):
        raise KeyError(uid)

    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    assert author() == f"uid {os.getuid()}"


def test_notes_are_listed_and_ended(tmp_path, capsys):
    where = ["--workdir", str(tmp_path)]
    main(["note", "decision", "add", "hard labels", "--json", *where])
    note_id = json.loads(capsys.readouterr().out)["id"]
    assert main(["note", "decision", "done", note_id, *where]) == 0
    assert "taken back" in capsys.readouterr().out
    main(["note", "decision", "list", "--json", *where])
    assert json.loads(capsys.readouterr().out)["notes"] == []
    main(["note", "decision", "list", "--all", *where])
    assert "hard labels" in capsys.readouterr().out
