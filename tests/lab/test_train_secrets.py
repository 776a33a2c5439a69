"""A secret reaches the job that needs it, and nothing else: everything on both sides is searched for it."""

import secrets as random
import subprocess
import threading

import pytest

from training import DIES, TRAINS, Site

NAME = "HF_TOKEN"


@pytest.fixture
def secret():
    return f"hf_{random.token_hex(16)}$'\""


@pytest.fixture
def site(lab, tmp_path):
    made = Site(lab, tmp_path, ct129={"secrets": [NAME]})
    yield made
    made.operator.end_started()


class Watch:
    """Looks at all command lines and environments of a host, again and again, while something happens there."""

    def __init__(self, host, secret):
        self._host, self._secret = host, secret
        self.seen = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *details):
        self._is_over.set()
        self._thread.join()

    def _look(self):
        while not self._is_over.is_set():
            for process in self._host.processes():
                if any(self._secret in word for word in process.argv):
                    self.seen.append(("argv", process))
                if any(self._secret in value for value in process.environ.values()):
                    self.seen.append(("environ", process))


def files_with(host, folder, secret):
    """Names of the host's files below a folder that hold it."""
    done = host.exec(["grep", "-rlF", "--", secret.partition("$")[0], folder], check=False)
    return done.out.splitlines()


def test_a_secret_is_in_the_jobs_environment_and_nowhere_else(site, ct129, secret):
    run = site.folder("ct129", "r1")
    with Watch(ct129, secret) as watch:
        started = site.start("ct129", "r1", TRAINS, env={NAME: secret})
        assert started.code == 0, started.err
        said = [started, site.operator.cli("train", "logs", "r1", "--host", "ct129", "--raw")]
        said.append(site.operator.cli("train", "list", "--host", "ct129", "--json"))
        (job,) = [p for p in site.processes("ct129", "r1") if "dflashctl_remote.entry.train" in p.argv]
        assert job.environ[NAME] == secret
        assert files_with(ct129, ct129.home(), secret) == [f"{run}/secrets.env"]
        assert ct129.exec(["stat", "-c", "%a", f"{run}/secrets.env"]).out.strip() == "600"
        said.append(site.stop("ct129", "r1"))
    assert {(where, process.pid) for where, process in watch.seen} == {("environ", job.pid)}
    assert files_with(ct129, ct129.home(), secret) == []
    assert all(secret not in done.out + done.err for done in said)
    on_this_side = subprocess.run(
        ["grep", "-rlF", secret[:20], str(site.operator.folder)], capture_output=True, check=False
    )
    assert on_this_side.stdout == b""


@pytest.mark.parametrize("more", [["--json"], []])
def test_a_dry_run_shows_how_long_it_is(site, secret, more):
    done = site.start("ct129", "r1", TRAINS, "--dry-run", *more, env={NAME: secret})
    assert done.code == 0, done.err
    assert secret[:20] not in done.out + done.err
    assert str(len(secret)) in done.out


def test_an_error_does_not_tell_it(site, ct129, secret, tmp_path):
    folder = f"{ct129.home()}/{site.folder_name}"
    done = site.start("ct129", "r1", DIES, "--debug", env={NAME: secret})
    assert done.code == 4
    assert secret[:20] not in done.out + done.err
    ct129.exec(["chmod", "500", f"{folder}/runs"])
    again = site.start("ct129", "r1", TRAINS, "--debug", env={NAME: secret})
    assert again.code != 0
    assert secret[:20] not in again.out + again.err


def test_one_that_is_not_set_is_asked_for_before_anything_is_sent(site, ct129):
    done = site.start("ct129", "r1", TRAINS, env={NAME: ""})
    assert done.code == 2
    assert f"host ct129 is to be given {NAME}, not set in the environment here" in done.err
    assert not ct129.exists(site.folder("ct129", "r1"))
