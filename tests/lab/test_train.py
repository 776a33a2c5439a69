"""`dflashctl train` on hosts behind SSH, by its commands; the truth is looked at on the hosts themselves."""

import json
import signal

import pytest
import yaml

from sshlab.host import wait_until
from training import DIES, ENDS, ENDS_SOON, IS_STUBBORN, TRAINS, Site


@pytest.fixture
def site(lab, tmp_path):
    made = Site(lab, tmp_path)
    yield made
    made.operator.end_started()


def test_a_run_is_started_listed_read_and_stopped_behind_a_jump_host(site):
    started = site.start("kpro6", "r1", TRAINS)
    assert started.code == 0, started.err
    assert "run r1 started on kpro6" in started.out
    assert site.states("kpro6") == {"r1": "running"}
    assert len(site.processes("kpro6", "r1")) >= 2
    logs = site.operator.cli("train", "logs", "r1", "--host", "kpro6", "-n", "3")
    assert logs.out.count("loss") == 3
    stopped = site.stop("kpro6", "r1")
    assert stopped.code == 0, stopped.err
    assert "ended when asked; no process of it is left" in stopped.out
    assert site.processes("kpro6", "r1") == []
    assert site.states("kpro6") == {"r1": "stopped"}
    again = site.stop("kpro6", "r1")
    assert (again.code, "was gone already" in again.out) == (0, True)


def test_a_second_start_of_the_same_name_starts_nothing(site, ct129):
    site.start("ct129", "r1", TRAINS)
    before = site.processes("ct129", "r1")
    second = site.start("ct129", "r1", TRAINS)
    assert second.code == 2
    assert "run r1 exists already on ct129 (running), nothing was started" in second.err
    assert [process.pid for process in site.processes("ct129", "r1")] == [process.pid for process in before]


def test_a_stopped_run_goes_on_where_it_was(site, ct129):
    site.start("ct129", "r1", TRAINS)
    site.stop("ct129", "r1")
    assert site.operator.cli("train", "resume", "r1", "--host", "ct129", "--dry-run").code == 0
    assert site.states("ct129") == {"r1": "stopped"}
    resumed = site.operator.cli("train", "resume", "r1", "--host", "ct129", "--detach", "--json")
    assert json.loads(resumed.out)["attempt"] == 2
    assert site.states("ct129") == {"r1": "running"}
    assert "nothing to resume" in site.operator.cli("train", "resume", "r1", "--host", "ct129", "--detach").err
    site.stop("ct129", "r1")
    steps = [json.loads(line) for line in ct129.read(f"{site.folder('ct129', 'r1')}/events.jsonl").splitlines()]
    numbers = [event["step"] for event in steps if event["kind"] == "step"]
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_job_that_does_not_come_up_is_reported_with_its_last_words(site):
    done = site.start("ct129", "r1", DIES)
    assert done.code == 4
    assert "ended at once, with exit code 9" in done.err
    said = [line for line in done.err.splitlines() if "of its last words" in line]
    assert said == [f"line {number} of its last words" for number in range(10, 40)]
    assert site.states("ct129") == {"r1": "failed"}


def test_what_ignores_the_request_is_killed_with_all_that_it_started(site):
    site.start("ct129", "r1", IS_STUBBORN)
    stopped = site.stop("ct129", "r1", "--grace", "1", "--json")
    assert stopped.code == 0, stopped.err
    assert json.loads(stopped.out)["proof"]["outcome"] == "had to be killed"
    assert site.processes("ct129", "r1") == []
    assert site.states("ct129") == {"r1": "stopped"}


def test_watching_shows_a_run_to_its_end(site):
    done = site.operator.cli(*[word for word in site.start_args("ct129", "r1", ENDS) if word != "--detach"])
    assert done.code == 0, done.err
    assert "run r1 on ct129 finished, newest checkpoint" in done.out
    assert "Ctrl-C ends the watching, not the run" in done.err
    assert "finished" in site.operator.cli("train", "watch", "r1", "--host", "ct129").out


def test_a_dry_run_asks_and_changes_nothing(site, ct129):
    done = site.start("ct129", "r1", TRAINS, "--dry-run")
    assert done.code == 0, done.err
    assert "nothing was started or sent" in done.out
    assert not ct129.exists(f"{ct129.home()}/{site.folder_name}")
    told = json.loads(site.start("ct129", "r1", TRAINS, "--dry-run", "--json", "--restarts", "2").out)
    assert (told["restarts"], told["bundle"]["presence"]) == (2, "absent")


def test_runs_of_all_hosts_are_listed_and_a_dead_one_as_it_was(site, lab, ct129):
    site.start("ct129", "r1", ENDS_SOON)
    site.start("kpro6", "r2", TRAINS)
    assert site.operator.cli("train", "list", "--all").code == 0
    with ct129.sshd_down():
        done = site.operator.cli("train", "list", "--all", "--json")
    assert done.code == 3
    states = {state["run"]["run_id"]: (state["state"], state["detail"]) for state in json.loads(done.out)}
    assert states["r2"] == ("running", "")
    assert states["r1"][0] == "unreachable"
    assert "last seen" in states["r1"][1]
    assert "ct129 cannot be reached" not in done.out


@pytest.mark.parametrize("command", ["stop", "resume"])
def test_a_protected_host_asks_to_be_named(lab, tmp_path, command):
    site = Site(lab, tmp_path, ct129={"protected": True})
    site.start("ct129", "r1", TRAINS)
    if command == "resume":
        site.stop("ct129", "r1", "--touch", "ct129")
    refused = site.operator.cli("train", command, "r1", "--host", "ct129")
    assert refused.code == 2
    assert f"ct129 is protected: `train {command}` needs --touch ct129" in refused.err
    wrong = site.operator.cli("train", command, "r1", "--host", "ct129", "--touch", "kpro6")
    assert wrong.code == 2
    expected = "running" if command == "stop" else "stopped"
    assert site.states("ct129") == {"r1": expected}
    detach = ["--detach"] if command == "resume" else []
    assert site.operator.cli("train", command, "r1", "--host", "ct129", "--touch", "ct129", *detach).code == 0


def test_a_protected_run_asks_to_be_named(site):
    site.start("ct129", "r1", TRAINS, "--set", "train.protected=true")
    refused = site.stop("ct129", "r1")
    assert (refused.code, "r1 is protected" in refused.err) == (2, True)
    assert site.stop("ct129", "r1", "--touch", "r1").code == 0


def test_our_stop_survives_where_a_pattern_kills_its_own_shell(ns_lab, site, ct129):
    if not ct129.has("pkill"):
        pytest.skip("no procps")
    site.start("ct129", "train_drafter", TRAINS)
    decoy = ct129.start(["sh", "-c", f"while :; do sleep 1; done # {site.folder('ct129', 'train_drafter')}"])
    by_pattern = site.operator.ssh("ct129", "pkill -f train_drafter_of_nobody; echo the rest of the command")
    assert (by_pattern.code, by_pattern.out) == (255, "")
    ours = site.stop("ct129", "train_drafter")
    assert (ours.code, "ended when asked" in ours.out) == (0, True)
    assert [process.pid for process in site.processes("ct129", "train_drafter")] == [decoy.pid]
    assert ct129.is_alive(decoy)


def test_a_host_that_says_nothing_keeps_nobody_from_seeing_the_others(site, ct129):
    site.start("kpro6", "r2", TRAINS)
    with ct129.sshd_paused():
        listing = site.operator.start_cli("train", "list", "--host", "kpro6", "--host", "ct129")
        seen = b""
        while b"r2" not in seen:
            new = listing.stdout.read1(4096)
            assert new, seen
            seen += new
        assert listing.poll() is None
    assert listing.wait(timeout=60) in (0, 3)


def test_a_protected_machine_is_that_by_every_name(lab, tmp_path):
    host = lab.hosts["ct129"]
    site = Site(lab, tmp_path, ct129={"protected": True})
    other = {"address": host.address, "port": host.port, "user": host.user, "identity_file": str(lab.identity_file)}
    hosts = yaml.safe_load(site.operator.hosts_file.read_text())
    hosts["hosts"]["other"] = {**other, **{k: hosts["hosts"]["ct129"][k] for k in ("workdir", "python")}}
    site.operator.hosts_file.write_text(yaml.safe_dump(hosts))
    assert site.start("other", "r1", TRAINS).code == 0
    refused = site.stop("other", "r1")
    assert refused.code == 2
    assert "other is the same machine as ct129, which is protected" in refused.err
    assert site.states("other") == {"r1": "running"}
    assert site.stop("other", "r1", "--touch", "ct129").code == 0


def test_a_run_that_was_killed_says_by_what(site, ct129):
    site.start("ct129", "r1", TRAINS)
    (job,) = [p for p in site.processes("ct129", "r1") if "dflashctl_remote.entry.train" in p.argv]
    ct129.signal(job, signal.SIGKILL)
    wait_until(lambda: site.states("ct129")["r1"] == "killed", "it is not told", 30.0)
    assert "r1: ended by signal 9 (SIGKILL)" in site.operator.cli("train", "list", "--host", "ct129").out


def test_runs_that_may_not_be_looked_at_are_not_called_none(ns_lab, tmp_path, ct129):
    site = Site(ns_lab, tmp_path, user="train", ct129={"workdir": "/root/somebody-else"})
    ct129.exec("mkdir -p /root/somebody-else/runs && chmod 700 /root/somebody-else")
    done = site.operator.cli("train", "list", "--host", "ct129")
    assert done.code == 4
    assert "may not be looked into by user train" in done.err
