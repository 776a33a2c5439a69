import json

import pytest

from dflashctl.cli.app import main


@pytest.mark.parametrize("words", [["--json"], ["--format", "json"]])
def test_json_is_one_document_of_facts(tmp_path, capsys, words):
    main(["note", "goal", "add", "tau of 6", "--workdir", str(tmp_path)])
    capsys.readouterr()
    assert main(["status", "--workdir", str(tmp_path), *words]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    assert document["notes"][0]["text"] == "tau of 6"


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
