"""What a relay leaves behind when it is killed, how it is taken up again, and what is seen of it meanwhile."""

import json
import os
import pty
import re
import signal
import sys
import threading
from pathlib import Path

import pytest
import yaml

from relay_site import MIB, RelaySite, digests_on
from sshlab.host import wait_until

pytestmark = pytest.mark.usefixtures("ns_lab")


class ResumeSite(RelaySite):
    def list(self):
        return json.loads(self.operator.cli("relay", "list", "--json").out)

    def kill_in_the_middle(self, *words, dest, chunks=4):
        """A relay over a slow link, killed once so many chunks have come; a checkpoint's first two are small."""
        with self.target.rate(100e6):
            begun = self.operator.start_cli("relay", *words)
            self.wait_for_chunks(dest, chunks)
            begun.send_signal(signal.SIGSTOP)
            (during,) = self.list()["begun_here"]
            assert (during["outcome"], during["process"]["pid"]) == ("moving", begun.pid)
            begun.kill()
            begun.wait()

    def resume(self, *words):
        return self.operator.cli("relay", "resume", *words, timeout_s=120.0)

    def is_whole(self, made):
        there = digests_on(self.target, self.place(self.target, made.run, made.step))
        return {path: sha for path, sha in there.items() if path != "manifest.json"} == made.for_serving


@pytest.fixture
def site(lab, tmp_path):
    made = ResumeSite(lab, tmp_path)
    yield made
    made.operator.end_started()


def test_one_that_was_killed_is_listed_as_broken_off_and_resumed_as_it_was_begun(site, ct129):
    made = site.make(size_mb=40)
    words = ["--encode", "no", "--connections", "2", "--hosts", "../hosts.yaml", "--replace", "--touch", "ct129"]
    site.kill_in_the_middle("ckpt", *words, dest=site.place(ct129))
    told = site.list()
    (record,) = told["begun_here"]
    assert (record["outcome"], record["source"], record["dest"]) == ("broken off", "kpro6:r1@100", "ct129")
    assert [one["dest"] for one in told["unfinished"]] == [site.place(ct129)]
    # A newer one has come meanwhile, and where one types is elsewhere: neither is what was begun.
    site.make(step=200)
    (site.operator.home / "hosts.yaml").write_text("hosts: {}\n")
    done = site.operator.cli("relay", "resume", "--json", env={"DFLASHCTL_HOSTS": "hosts.yaml"}, timeout_s=120.0)
    assert done.code == 0, done.err
    sent = json.loads(done.out)
    assert (set(sent["hows"]), sent["kept_bytes"] >= 16 * MIB) == ({"raw"}, True)
    assert site.is_whole(made)
    (record,) = site.list()["begun_here"]
    assert record["outcome"] == "done"
    how = record["how"]
    assert how[: how.index("--hosts")] == ["--encode", "no", "--connections", "2"]
    assert (how[-2:], "--replace" in record["what"]) == (["--touch", "ct129"], True)


def test_the_same_command_again_takes_up_the_record_too(site, ct129):
    made = site.make(size_mb=40)
    site.kill_in_the_middle("ckpt", "--encode", "no", dest=site.place(ct129))
    done = site.ckpt("r1@latest", "--json")
    assert (done.code, json.loads(done.out)["kept_bytes"] >= 16 * MIB) == (0, True), done.err
    assert [record["outcome"] for record in site.list()["begun_here"]] == ["done"]
    assert site.is_whole(made)
    name = site.list()["begun_here"][0]["name"]
    again = site.resume(name)
    assert (again.code, again.out) == (0, f"relay {name} came to its end: nothing is left\n"), again.err
    none = site.resume()
    assert (none.code, "no relay is unfinished" in none.err) == (2, True), none.err
    wrong = site.resume(name[:-1] + "?")
    assert (wrong.code, f"did you mean {name}?" in wrong.err) == (2, True), wrong.err


@pytest.mark.slow
def test_one_that_is_at_work_is_not_begun_twice(site, ct129):
    made = site.make(size_mb=20)
    with ct129.rate(100e6):
        begun = site.operator.start_cli("relay", "ckpt", "--encode", "no")
        site.wait_for_chunks(site.place(ct129), 1)
        begun.send_signal(signal.SIGSTOP)
        (record,) = site.list()["begun_here"]
        done = site.resume(record["name"])
        assert (done.code, f"in process {begun.pid}" in done.err) == (2, True), done.err
        begun.send_signal(signal.SIGCONT)
    assert begun.wait(60) == 0
    assert site.is_whole(made)


@pytest.mark.slow
def test_paths_here_are_found_again_from_elsewhere(site, ct129):
    folder = site.operator.home / "data"
    folder.mkdir()
    (folder / "big.bin").write_bytes(os.urandom(40 * MIB))
    dest = f"{site.workdir(ct129)}/data"
    words = ["path", "data/", f"ct129:{site.workdir(ct129)}/", "--encode", "no"]
    site.kill_in_the_middle(*words, dest=dest, chunks=2)
    elsewhere = site.operator.home / "elsewhere"
    elsewhere.mkdir()
    argv = ["env", "-C", str(elsewhere), sys.executable, "-m", "dflashctl", "relay", "resume"]
    done = site.operator.run(argv, timeout_s=120.0)
    assert (done.code, "were there from an earlier try" in done.out) == (0, True), done.err
    assert ct129.read(f"{dest}/big.bin") == (folder / "big.bin").read_bytes()


def test_without_a_folder_for_the_history_it_works_all_the_same(site):
    made = site.make()
    env = {"XDG_STATE_HOME": "/proc/no-such-folder"}
    done = site.operator.cli("relay", "ckpt", env=env)
    assert (done.code, site.is_whole(made)) == (0, True), done.err
    listed = site.operator.cli("relay", "list", env=env)
    assert (listed.code, "no relay was begun on this machine" in listed.out) == (0, True), listed.err


def test_a_destination_that_is_not_known_is_refused(site):
    done = site.operator.cli("relay", "list", "--to", "ct12")
    assert (done.code, "did you mean ct129?" in done.err) == (2, True), done.err


def test_a_destination_that_is_away_does_not_keep_the_list_from_being_shown(site, ct129):
    site.make()
    assert site.ckpt().code == 0
    with ct129.sshd_down():
        ct129.kill_sessions()
        done = site.operator.cli("relay", "list")
    assert (done.code, "kpro6:r1@100" in done.out, "ct129" in done.err) == (0, True, True), done.err


class Screen:
    """Of a terminal: what is on it, and every state that it was in before a line was wiped out."""

    def __init__(self, columns=100):
        self.rows, self.row, self.column, self.columns = [""], 0, 0, columns
        self.states = []

    def feed(self, text):
        for piece in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[^\x1b]", text):
            if piece.endswith("A") and piece[0] == "\x1b":
                self.row -= int(piece[2:-1])
                assert self.row >= 0
            elif piece == "\x1b[2K":
                self.states.append(list(self.rows))
                self.rows[self.row] = ""
            elif piece == "\r":
                self.column = 0
            elif piece == "\n":
                self.row += 1
                if self.row == len(self.rows):
                    self.rows.append("")
            elif piece[0] != "\x1b":
                self._put(piece)

    def _put(self, letter):
        if self.column == self.columns:
            self.column, self.row = 0, self.row + 1
            self.rows += [""] * (self.row == len(self.rows))
        line = self.rows[self.row].ljust(self.column)
        self.rows[self.row] = line[: self.column] + letter + line[self.column + 1 :]
        self.column += 1


def on_a_terminal(operator, *words):
    """Runs a command there; gives its exit code and the screen."""
    ours, theirs = pty.openpty()
    # By its name, since what a process is started with here are pipes.
    inside = 'exec <"$0" >"$0" 2>&1 && stty cols 100 rows 40 && exec "$@"'
    argv = ["sh", "-c", inside, os.ttyname(theirs), sys.executable, "-m", "dflashctl", *words]
    text = []

    def read():
        try:
            while data := os.read(ours, 65536):
                text.append(data)
        except OSError:
            pass

    process = operator.start(argv, env={"TERM": "xterm"})
    thread = threading.Thread(target=read)
    thread.start()
    code = process.wait(120)
    os.close(theirs)
    thread.join()
    os.close(ours)
    screen = Screen()
    screen.feed(b"".join(text).decode())
    return code, screen


def test_on_a_terminal_one_block_is_redrawn_in_place_and_gone_at_the_end(site, ct129):
    site.make(size_mb=20)
    with ct129.rate(100e6):
        code, screen = on_a_terminal(site.operator, "relay", "ckpt", "--encode", "no")
    assert code == 0, screen.rows
    assert max(sum(row.strip() != "" for row in state) for state in screen.states) == 4
    moving = [state for state in screen.states if len(state) > 3 and "moving" in state[2]]
    assert moving and moving[-1][0] == "r1@100"
    assert re.search(r"moving: [0-9.]+ MiB of 19.1 MiB, [0-9.]+ MiB/s", moving[-1][2])
    assert any("kpro6 -> here" in state[3] and "ct129 is the slower leg" in state[3] for state in moving)
    left = [row for row in screen.rows if row.strip()]
    assert left[0].startswith("r1@100 is on ct129")
    assert "moving" not in "".join(left)


def test_without_a_terminal_it_is_quiet_and_json_is_one_document(site):
    site.make()
    done = site.ckpt()
    assert (done.err, done.out.count("\n")) == ("", 1)
    site.make(step=200)
    done = site.ckpt("--json")
    assert (done.err, json.loads(done.out)["num_files"]) == ("", 2)


@pytest.mark.slow
def test_without_a_terminal_a_long_one_says_a_line_now_and_then(site, ct129):
    site.make(size_mb=40)
    with ct129.rate(20e6):
        begun = site.operator.start_cli("relay", "ckpt", "--encode", "no")
        line = begun.stderr.readline().decode()
    assert re.match(r"moving: [0-9.]+ M?i?B of 38.1 MiB, [0-9.]+ [KM]?i?B/s", line), line
    begun.send_signal(signal.SIGINT)
    _, err = begun.communicate(timeout=60)
    assert (begun.returncode, b"relay resume" in err) == (130, True), err


def test_a_damaged_history_hinders_nothing(site):
    made = site.make()
    path = site.operator.home / ".local/state/dflashctl/relays.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\xff{\nnull\n" + b'{"name":')
    assert site.ckpt().code == 0
    assert [record["outcome"] for record in site.list()["begun_here"]] == ["done"]
    assert site.is_whole(made)


def test_the_hosts_file_that_was_found_is_the_one_that_is_used_again(site):
    """By its whole name, however it was found."""
    site.make()
    assert site.ckpt().code == 0
    (record,) = site.list()["begun_here"]
    file = record["how"][record["how"].index("--hosts") + 1]
    assert yaml.safe_load(Path(file).read_text()) == yaml.safe_load(site.operator.hosts_file.read_text())
    wait_until(lambda: not site.agents(site.source), "agents end")
