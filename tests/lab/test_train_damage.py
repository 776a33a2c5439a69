"""Runs whose files are damaged, names that are none, and clocks that step: told as they are, and never beyond help."""

import json
import signal

import pytest

from training import TRAINS, Site


@pytest.fixture
def site(lab, tmp_path):
    return Site(lab, tmp_path)


@pytest.mark.parametrize("name", ["*", "r?", "../runs/r1", "r1/", "", "x" * 101])
@pytest.mark.parametrize("command", ["stop", "logs", "watch", "resume"])
def test_a_name_that_is_none_is_neither_a_pattern_nor_a_path(site, command, name):
    assert site.start("ct129", "r1", TRAINS).code == 0
    done = site.operator.cli("train", command, name, "--host", "ct129")
    assert done.code == 2
    assert "cannot be a run's name" in done.err
    assert site.states("ct129") == {"r1": "running"}


def test_a_folder_with_an_odd_name_is_no_run_and_hides_none(site, ct129):
    site.start("ct129", "r1", TRAINS)
    runs = site.folder("ct129", "r1").rpartition("/")[0]
    ct129.exec(["/bin/sh", "-c", 'mkdir "$1" && echo {} >"$1/run.json"', "sh", f"{runs}/a\nrun=b"])
    assert site.states("ct129") == {"r1": "running"}


@pytest.mark.parametrize(
    ("damage", "state"),
    [
        (r"printf '\0\377\n' >>events.jsonl", "unreadable"),
        ("echo '{\"code\": 1' >exit.json", "unreadable"),
        (": >run.json", "running"),
        ("rm run.json", "running"),
    ],
)
def test_a_living_run_with_a_damaged_file_can_be_stopped_and_read(site, ct129, damage, state):
    site.start("ct129", "r1", TRAINS)
    folder = site.folder("ct129", "r1")
    ct129.exec(f"cd '{folder}' && {damage}")
    listed = site.operator.cli("train", "list", "--host", "ct129")
    assert f"ct129 r1 {state}" in " ".join(listed.out.split())
    assert ("\n  r1: " in listed.out) == (state == "unreadable")
    assert site.operator.cli("train", "logs", "r1", "--host", "ct129", "--raw").code == 0
    if "run.json" in damage:
        assert "--touch r1" in site.stop("ct129", "r1").err
    ct129.exec(f"rm -f '{folder}/exit.json'")
    stopped = site.stop("ct129", "r1", *(["--touch", "r1"] if "run.json" in damage else []))
    assert stopped.code == 0, stopped.err
    assert site.processes("ct129", "r1") == []


def test_a_clock_that_stepped_back_does_not_make_a_resumed_run_a_stopped_one(site, ct129):
    site.start("ct129", "r1", TRAINS)
    site.stop("ct129", "r1")
    events = f"{site.folder('ct129', 'r1')}/events.jsonl"
    later = [json.loads(line) for line in ct129.read(events).splitlines()]
    for event in later:
        event["at_s"] += 3600
    ct129.write(events, "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in later))
    assert site.operator.cli("train", "resume", "r1", "--host", "ct129", "--detach").code == 0
    assert site.states("ct129") == {"r1": "running"}
    site.stop("ct129", "r1")


def test_a_last_word_of_any_length_is_heard(site, ct129):
    site.start("ct129", "r1", TRAINS)
    site.stop("ct129", "r1")
    failed = {"kind": "failed", "at_s": 2e9, "error": "X", "message": "the taps", "exit_code": 1}
    failed["traceback"] = "x" * 40_000
    path = f"{site.folder('ct129', 'r1')}/events.jsonl"
    ct129.write(path, ct129.read(path) + json.dumps(failed, separators=(",", ":")).encode() + b"\n")
    assert site.states("ct129") == {"r1": "failed"}


def test_more_lines_than_there_are_is_all_of_them(site, ct129):
    site.start("ct129", "r1", TRAINS)
    site.stop("ct129", "r1")
    told = site.operator.cli("train", "logs", "r1", "--host", "ct129", "--raw", "-n", "900000")
    log = ct129.read(f"{site.folder('ct129', 'r1')}/log").decode()
    assert told.out == log


def test_a_list_as_json_says_on_stderr_who_gave_no_answer(site, ct129):
    with ct129.sshd_down():
        done = site.operator.cli("train", "list", "--all", "--json")
    assert done.code == 3
    assert json.loads(done.out) == []
    assert "ct129" in json.loads(done.err)["error"]["message"]


def test_hints_lead_to_the_same_work_folder(site, tmp_path):
    folder = f"~/{tmp_path.name} elsewhere"
    done = site.start("ct129", "r1", TRAINS, "--workdir", folder)
    assert f"dflashctl train watch r1 --host ct129 --workdir '{folder}'" in done.out
    assert site.stop("ct129", "r1", "--workdir", folder).code == 0


@pytest.mark.parametrize("what", ["r1", "r1/token.json"])
def test_a_copy_of_a_run_is_not_the_run(site, ct129, what):
    site.start("ct129", "r1", TRAINS, "--set", "train.protected=true")
    site.start("ct129", "copy", TRAINS)
    site.stop("ct129", "copy")
    runs = site.folder("ct129", "r1").rpartition("/")[0]
    if what == "r1":
        unprotect = 's/"protected": true/"protected": false/'
        ct129.exec(f"cd '{runs}' && rm -r copy && cp -a r1 copy && sed -i '{unprotect}' copy/run.json")
    else:
        ct129.exec(f"cp -a '{runs}/r1/token.json' '{runs}/copy/token.json' && rm -f '{runs}/copy/exit.json'")
    done = site.stop("ct129", "copy")
    assert done.code == 4
    assert "is another run's" in done.err
    assert site.states("ct129") == {"copy": "unreadable", "r1": "running"}
    assert site.processes("ct129", "r1")
    site.stop("ct129", "r1", "--touch", "r1")


def test_a_supervisor_that_was_killed_leaves_no_room_for_a_second_trainer(site, ct129):
    site.start("ct129", "r1", TRAINS)
    (supervisor,) = [p for p in site.processes("ct129", "r1") if any("supervise.sh" in word for word in p.argv)][:1]
    ct129.signal(supervisor, signal.SIGKILL)
    listed = site.operator.cli("train", "list", "--host", "ct129")
    assert "its supervisor is gone" in listed.out
    refused = site.operator.cli("train", "resume", "r1", "--host", "ct129", "--detach")
    assert (refused.code, "nothing to resume" in refused.err) == (2, True)
    assert site.stop("ct129", "r1").code == 0
    assert site.processes("ct129", "r1") == []
