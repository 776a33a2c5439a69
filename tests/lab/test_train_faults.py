"""Broken links and killed operators at each phase of a launch and of following: the state on the host decides."""

import signal
import threading
import time

import pytest

from sshlab.host import wait_until
from training import TRAINS, Site


@pytest.fixture
def site(lab, tmp_path):
    made = Site(lab, tmp_path)
    yield made
    made.operator.end_started()


class Reader:
    """`train logs -f --raw`, read as it comes."""

    def __init__(self, site, host, run):
        self.process = site.operator.start_cli("train", "logs", run, "--host", host, "--raw", "-f", "-n", "1000000")
        self.out = b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        while new := self.process.stdout.read1(65536):
            self.out += new

    def end(self) -> str:
        """What it said beside the log, after it has ended by itself."""
        assert self.process.wait(timeout=60) == 0
        self._thread.join()
        return self.process.stderr.read().decode()


def follow_through(site, host, fault, *, min_steps=60):
    """Follow a run's log through a fault; all of it must have come, once."""
    assert site.start(host.name, "r1", TRAINS).code == 0
    reader = Reader(site, host.name, "r1")
    wait_until(lambda: reader.out.count(b"\n") > 5, "no line came", 30.0)
    fault()
    seen = len(reader.out)
    wait_until(lambda: len(reader.out) > seen + 60 * 20, "nothing came after the fault", 60.0)
    assert site.stop(host.name, "r1").code == 0
    said = reader.end()
    folder = site.folder(host.name, "r1")
    assert reader.out == host.read(f"{folder}/log")
    numbers = [int(line.split()[1]) for line in reader.out.splitlines() if line.startswith(b"step")]
    assert numbers == list(range(1, len(numbers) + 1))
    return said


def test_the_log_is_followed_through_killed_sessions(site, ct129):
    def fault():
        for _ in range(3):
            ct129.kill_sessions()
            time.sleep(0.7)

    assert "trying again" in follow_through(site, ct129, fault)


def test_the_log_is_followed_through_a_dead_sshd(site, ct129):
    def fault():
        sessions = ct129.below_sshd()
        with ct129.sshd_down():
            for session in sessions:
                ct129.signal_if_there(session, signal.SIGKILL)
            time.sleep(2.0)

    said = follow_through(site, ct129, fault)
    assert "trying again" in said
    assert "ct129 answers again" in said


def test_the_log_is_followed_through_a_reset(ns_lab, site, ct129):
    def fault():
        with ct129.tcp_reset():
            time.sleep(2.0)

    assert "answers again" in follow_through(site, ct129, fault)


def test_the_log_is_followed_through_five_seconds_of_silence(ns_lab, site, kpro6):
    def fault():
        with kpro6.link_down():
            time.sleep(5.0)

    follow_through(site, kpro6, fault)


@pytest.mark.slow
def test_the_log_is_followed_through_a_minute_of_silence(ns_lab, site, kpro6):
    def fault():
        with kpro6.link_down():
            time.sleep(60.0)

    assert "answers again" in follow_through(site, kpro6, fault)


def test_a_run_outlives_whoever_watches_it(site, ct129):
    site.start("ct129", "r1", TRAINS)
    watcher = site.operator.start_cli("train", "watch", "r1", "--host", "ct129")
    wait_until(lambda: watcher.stderr.read1(1), "it said nothing", 30.0)
    watcher.send_signal(signal.SIGKILL)
    watcher.wait()
    assert site.states("ct129") == {"r1": "running"}


def test_ctrl_c_ends_the_watching_and_not_the_run(site, ct129):
    site.start("ct129", "r1", TRAINS)
    watcher = site.operator.start_cli("train", "watch", "r1", "--host", "ct129")
    wait_until(lambda: watcher.stderr.read1(1), "it said nothing", 30.0)
    watcher.send_signal(signal.SIGINT)
    assert watcher.wait(timeout=20) == 130
    assert b"run r1 goes on" in watcher.stderr.read()
    assert site.states("ct129") == {"r1": "running"}


def num_started(host, site, run):
    """Ground truth: how often the job itself was started."""
    path = f"{site.folder(host.name, run)}/events.jsonl"
    return host.read(path).count(b'"kind":"started"') if host.exists(path) else 0


@pytest.mark.parametrize("after_s", [0.5, 0.7, 0.9, 1.1, 1.3, 1.6])
def test_an_operator_killed_while_starting_leaves_one_run_or_none(site, ct129, after_s):
    first = site.operator.start_cli(*site.start_args("ct129", "r1", TRAINS))
    time.sleep(after_s)
    first.send_signal(signal.SIGKILL)
    first.wait()
    again = site.start("ct129", "r1", TRAINS)
    assert again.code in (0, 2), again.err
    if again.code == 2:
        assert "run r1 exists already on ct129" in again.err
        wait_until(lambda: site.states("ct129")["r1"] == "running", "it does not run", 20.0)
    wait_until(lambda: num_started(ct129, site, "r1"), "it was not started", 20.0)
    assert num_started(ct129, site, "r1") == 1
    assert site.stop("ct129", "r1").code == 0
    assert site.processes("ct129", "r1") == []


@pytest.mark.parametrize("after_s", [0.4, 0.6, 0.8, 1.0, 1.2, 1.5])
def test_a_start_whose_session_is_killed_is_found_out_and_never_doubled(site, ct129, after_s):
    start = site.operator.start_cli(*site.start_args("ct129", "r1", TRAINS))
    time.sleep(after_s)
    ct129.kill_sessions()
    code = start.wait(timeout=60)
    said = start.stderr.read().decode()
    if code == 0:
        assert site.states("ct129") == {"r1": "running"}
    else:
        # Before anything was sent: then nothing may be there.
        assert code == 3, said
        assert site.start("ct129", "r1", TRAINS).code == 0
    wait_until(lambda: num_started(ct129, site, "r1"), "it was not started", 20.0)
    assert num_started(ct129, site, "r1") == 1


def test_a_stop_whose_link_is_cut_is_settled_by_the_next(ns_lab, site, ct129):
    site.start("ct129", "r1", TRAINS)
    with ct129.link_down():
        unknown = site.stop("ct129", "r1", "--grace", "1")
    assert unknown.code == 3
    assert "cannot be reached" in unknown.err or "unknown" in unknown.err
    settled = site.stop("ct129", "r1")
    assert settled.code == 0, settled.err
    assert site.states("ct129") == {"r1": "stopped"}
    assert site.processes("ct129", "r1") == []


def test_a_link_that_is_cut_in_the_middle_of_a_stop_only_delays_it(ns_lab, site, ct129):
    site.start("ct129", "r1", TRAINS)
    stop = site.operator.start_cli("train", "stop", "r1", "--host", "ct129")
    wait_until(lambda: b"asked" in stop.stderr.read1(4096), "it did not ask", 30.0)
    with ct129.link_down():
        time.sleep(3.0)
    assert stop.wait(timeout=90) == 0
    assert site.processes("ct129", "r1") == []


@pytest.mark.slow
def test_a_minute_of_silence_in_a_start_starts_it_once(ns_lab, site, kpro6):
    start = site.operator.start_cli(*site.start_args("kpro6", "r1", TRAINS))
    time.sleep(0.9)
    with kpro6.link_down():
        time.sleep(60.0)
    assert start.wait(timeout=180) in (0, 3)
    again = site.start("kpro6", "r1", TRAINS)
    assert again.code in (0, 2), again.err
    wait_until(lambda: num_started(kpro6, site, "r1"), "it was not started", 20.0)
    assert num_started(kpro6, site, "r1") == 1


@pytest.mark.slow
def test_a_minute_of_silence_in_a_stop_only_delays_it(ns_lab, site, kpro6):
    site.start("kpro6", "r1", TRAINS)
    stop = site.operator.start_cli("train", "stop", "r1", "--host", "kpro6")
    wait_until(lambda: b"asked" in stop.stderr.read1(4096), "it did not ask", 30.0)
    with kpro6.link_down():
        time.sleep(60.0)
    assert stop.wait(timeout=180) == 0
    assert site.processes("kpro6", "r1") == []
