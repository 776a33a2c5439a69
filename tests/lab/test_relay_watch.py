"""`relay watch`: checkpoints come into being at the source while it looks on."""

import json
import signal
import threading

import pytest

from relay_site import RelaySite, digests_on
from sshlab.host import wait_until

pytestmark = pytest.mark.usefixtures("ns_lab")


class WatchSite(RelaySite):
    def watch(self, *words, env=None):
        return self.operator.start_cli("relay", "watch", "r1", "--every", "1", *words, env=env)

    def end_run(self):
        self.source.write(f"{self.workdir(self.source)}/runs/r1/exit.json", "{}")

    def there(self):
        """Steps of the run that are on the target, complete."""
        found = self.target.exec(
            f"ls -d {self.workdir(self.target)}/runs/r1/checkpoints/step-*", check=False
        ).out.split()
        return [int(path.rpartition("-")[2]) for path in found]

    def wait_for(self, *steps):
        wait_until(lambda: self.there() == list(steps), f"checkpoints {steps} on the target", 60.0)


@pytest.fixture
def site(lab, tmp_path):
    made = WatchSite(lab, tmp_path)
    yield made
    made.operator.end_started()


class Lines:
    """What a command says on stderr, while it says it."""

    def __init__(self, process):
        self.text = ""
        self._process = process
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        for line in self._process.stderr:
            self.text += line.decode()

    def wait_for(self, words):
        wait_until(lambda: words in self.text or self._process.poll() is not None, words, 60.0)
        assert words in self.text

    def end(self, timeout_s=60):
        code = self._process.wait(timeout_s)
        self._thread.join()
        return code


def test_a_run_is_followed_to_its_end_and_the_target_is_pruned(site, ct129):
    ct129.write(f"{site.place(ct129, step=3)}/manifest.json", "of somebody else")
    site.make(step=100), site.make(step=200)
    seen = "$DFLASHCTL_RUN $DFLASHCTL_STEP $DFLASHCTL_HOST $DFLASHCTL_CHECKPOINT"
    begun = site.watch("--keep", "2", "--then", f'echo "{seen}" >>hooked; echo from the hook', "--json")
    # The newest came first, the one that it has overtaken never.
    site.wait_for(3, 200)
    site.make(step=300)
    site.wait_for(3, 200, 300)
    last = site.make(step=400)
    site.wait_for(3, 300, 400)
    site.end_run()
    out, err = begun.communicate(timeout=60)
    assert begun.returncode == 0, err
    told = json.loads(out)
    assert [one["checkpoint"] for one in told["brought"]] == ["r1@200", "r1@300", "r1@400"]
    hooked = (site.operator.home / "hooked").read_text().splitlines()
    assert hooked == [f"r1 {step} ct129 {site.place(ct129, step=step)}" for step in (200, 300, 400)]
    # One document on stdout, and not what the hook says.
    assert err == b"from the hook\n" * 3
    there = digests_on(ct129, site.place(ct129, step=400))
    assert {path: sha for path, sha in there.items() if path != "manifest.json"} == last.for_serving
    again = site.operator.cli("relay", "watch", "r1")
    assert (again.code, "r1@400 is on ct129 already" in again.err) == (0, True), again.err


@pytest.mark.slow
def test_it_waits_for_the_first_checkpoint_and_goes_on_after_the_host_was_away(site, kpro6):
    kpro6.exec(f"mkdir -p {site.workdir(kpro6)}/runs/r1/checkpoints")
    begun = site.watch()
    lines = Lines(begun)
    lines.wait_for("r1 on kpro6 has no complete checkpoint yet; waiting for the first")
    with kpro6.sshd_down():
        kpro6.kill_sessions()
        lines.wait_for("looking again in 1 s")
    site.make(step=100)
    site.wait_for(100)
    site.end_run()
    assert (lines.end(), "r1@100 is on ct129" in lines.text) == (0, True), lines.text
    assert b"has ended; its last checkpoint is on ct129" in begun.stdout.read()


@pytest.mark.slow
def test_a_target_that_is_away_is_waited_for(site, ct129):
    site.make(step=100)
    begun = site.watch()
    lines = Lines(begun)
    site.wait_for(100)
    with ct129.sshd_down():
        site.make(step=200)
        lines.wait_for("trying again in 1 s")
    site.wait_for(100, 200)
    site.end_run()
    assert lines.end() == 0, lines.text


def test_a_command_that_fails_ends_it(site):
    site.make(step=100)
    begun = site.watch("--then", "exit 7")
    _, err = begun.communicate(timeout=60)
    assert (begun.returncode, b"ended with exit code 7" in err) == (4, True), err
    assert site.there() == [100]


def test_ctrl_c_ends_it(site):
    site.make(step=100)
    begun = site.watch()
    site.wait_for(100)
    begun.send_signal(signal.SIGINT)
    _, err = begun.communicate(timeout=60)
    assert (begun.returncode, b"watching was ended" in err, b"Traceback" in err) == (130, True, False), err


@pytest.mark.slow
def test_one_that_is_damaged_is_passed_over_and_the_last_one_decides(site, kpro6):
    site.make(step=100)
    kpro6.exec(f"echo x >>{site.place(kpro6)}/config.json")
    begun = site.watch()
    lines = Lines(begun)
    lines.wait_for("a newer one is looked for")
    site.make(step=200)
    site.wait_for(200)
    site.make(step=300)
    kpro6.exec(f"echo x >>{site.place(kpro6, step=300)}/config.json")
    site.end_run()
    assert (lines.end(), "config.json has" in lines.text) == (5, True), lines.text
    assert site.there() == [200]


def test_a_checkpoint_that_is_pruned_before_it_is_pinned_is_passed_over(site, kpro6):
    """The source prunes the one that was found, as soon as anybody asks for its files."""
    site.make(step=100)
    prune = 'import shutil; shutil.rmtree(root) if root.endswith("100") else None; found_root = os.path.abspath(path)'
    site.sabotage(
        kpro6, "chief.py", "    root = os.path.abspath(path)\n", f"    root = os.path.abspath(path); {prune}\n"
    )
    begun = site.watch()
    lines = Lines(begun)
    lines.wait_for("a newer one is looked for")
    site.make(step=200)
    site.wait_for(200)
    site.end_run()
    assert lines.end() == 0, lines.text


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nobody"], 2, "there is no run nobody on kpro6"),
        (["r1", "--to", "kpro6"], 2, "source and destination at once"),
        (["r1"], 5, "has ended without a complete checkpoint"),
    ],
)
def test_what_cannot_be_followed_is_said(site, kpro6, words, code, said):
    kpro6.exec(f"mkdir -p {site.workdir(kpro6)}/runs/r1/checkpoints")
    site.end_run()
    done = site.operator.cli("relay", "watch", *words)
    assert (done.code, said in done.err) == (code, True), done.err


def test_a_protected_target_is_pruned_only_if_it_is_named(lab, tmp_path):
    site = WatchSite(lab, tmp_path, ct129={"protected": True})
    site.make(step=100)
    site.end_run()
    done = site.operator.cli("relay", "watch", "r1", "--keep", "1")
    assert (done.code, "--touch ct129" in done.err) == (2, True), done.err
    assert site.operator.cli("relay", "watch", "r1", "--keep", "1", "--touch", "ct129").code == 0
