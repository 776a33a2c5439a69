"""Launching and stopping on real hosts, with the truth read from outside of them."""

import json
import random
import re
import shlex
import signal
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

import pytest

from dflashctl.errors import ConfigError, HostUnreachable, JobFailed, LinkLost
from dflashctl.operations.bundle import ensure_bundle
from dflashctl.operations.launch import launch
from dflashctl.operations.stop import stop
from dflashctl_remote.spec.process import MARKER, ExitRecord, ProcessToken
from shells import Shells
from sshlab.host import LabError, wait_until
from supervised_jobs import HAS_CHILDREN, IS_DEAF, SAVES, SLEEPS, gated, make_job

NUM_CUTS = 30
PYTHON = "/usr/bin/python3"
SH_CHILDREN = """
trap '' TERM
sleep 1001 &
setsid sleep 1002 >/dev/null 2>&1 &
(setsid sh -c 'sleep 1003 & sleep 1004 &' &)
env -i sleep 1005 &
env -i setsid sleep 1006 >/dev/null 2>&1 &
setsid sh -c "trap '' TERM; while :; do sleep 0.3; done" >/dev/null 2>&1 &
(exec -a sshd: sleep 1007) 2>/dev/null &
env -i setsid sh -c 'sleep 1008 &'
"""
"""Deaf, with children of every kind; of the last one only the log that it holds open tells whose it is."""
ENDINGS = {"wait": "while :; do sleep 1; done", "save": "trap 'exit 130' TERM; while :; do sleep 0.1; done"}


class Site:
    """Runs on one host, each with what really is there of it."""

    def __init__(self, host, shell, workdir, supervisor, user=None):
        self.host, self.shell, self.workdir, self.supervisor = host, shell, workdir, supervisor

    def job(self, code=SLEEPS, **changes):
        argv = changes.pop("argv", (PYTHON, "-S", "-c", code))
        return make_job(self.workdir, code, **{"supervisor": self.supervisor, "argv": argv, **changes})

    def launch(self, code=SLEEPS, *, nonce=None, is_resume=False, say=lambda line: None, pause=time.sleep, **changes):
        job = self.job(code, **changes)
        return launch(self.shell, job, nonce=nonce, is_resume=is_resume, settle_s=0.0, say=say, pause=pause)

    def stop(self, name="run-1", *, grace_s=5.0, **changes):
        return stop(self.shell, f"{self.workdir}/runs/{name}", who="a test", grace_s=grace_s, **changes)

    def read(self, path, name="run-1"):
        return self.host.read(f"{self.workdir}/runs/{name}/{path}")

    def exists(self, path, name="run-1"):
        return self.host.exists(f"{self.workdir}/runs/{name}/{path}")

    def log(self, name="run-1"):
        return self.read("log", name).decode()

    def says(self, text, name="run-1"):
        wait_until(lambda: self.exists("log", name) and text in self.log(name), f"{text} in the log", 30.0)

    def end(self, name="run-1"):
        wait_until(lambda: self.exists("exit.json", name), "exit.json", 30.0)
        return ExitRecord.model_validate_json(self.read("exit.json", name))

    def left(self):
        """All that runs on the host, but for what it runs by itself; nobody is logged in for it."""
        return [process for process in self.host.jobs() if process.state not in "ZX"]

    def is_empty(self):
        # The shell of the last answer may just be ending.
        wait_until(lambda: self.left() == [], "nothing is left")

    def carriers(self, nonce):
        return [process for process in self.left() if process.environ.get(MARKER) == nonce]


@pytest.fixture
def make_site(lab, operator, tmp_path):
    shells = Shells(operator)

    def make(host, *, workdir=None, **fields):
        shell = shells(host.name, **fields)
        home = host.home(fields.get("user"))
        place = f'{home}/{tmp_path.name} it\'s "quoted" $(x)'
        supervisor = ensure_bundle(shell, place).supervisor
        return Site(host, shell, workdir or place, supervisor)

    yield make
    shells.close()
    for host in lab.hosts.values():
        host.start_sshd()


@pytest.fixture
def site(make_site, ct129):
    return make_site(ct129)


@pytest.fixture
def nonce():
    return f"{random.getrandbits(128):032x}"


# ---- starting and stopping, again and again


@pytest.mark.parametrize("num_cycles", [16, pytest.param(200, marks=pytest.mark.slow)])
def test_runs_again_and_again_leave_nothing_and_hurt_nobody(lab, site, num_cycles):
    """A quarter of them is not given any time, and all have children that do what they can to stay."""
    argv = ("/bin/sh", "-c", SH_CHILDREN + ENDINGS["wait"])
    decoys = [site.host.start(list(argv)), site.host.start(["sleep", "1001"])]
    # All of a decoy's: some are nobody's children by then, and nothing tells later whose they are.
    sleepers = {"1003", "1004", "1008"}
    wait_until(lambda: sleepers <= {process.argv[-1] for process in site.left() if process.argv}, "the decoys are up")
    theirs = {process.outer_pid for process in site.left()}
    lock, failures, numbers = threading.Lock(), [], iter(range(num_cycles))

    def cycle():
        for number in iter(lambda: _next(lock, numbers), None):
            name = f"run-{number}"
            ending = ENDINGS["save" if number % 4 else "wait"]
            try:
                site.launch(argv=("/bin/sh", "-c", SH_CHILDREN + ending), name=name, needs_port=number % 2 == 0)
                proof = site.stop(name, grace_s=1.0 if number % 4 else 0.0)
                if proof.survivors or proof.ports_held:
                    failures.append((name, proof))
            except (HostUnreachable, JobFailed, ConfigError) as error:
                failures.append((name, error))

    threads = [threading.Thread(target=cycle) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []

    def left():
        """But for what the decoys are, or have started since."""
        return [one for one in site.left() if not {one.outer_pid, one.outer_parent} & theirs]

    # The shell of the last answer may just be ending.
    with suppress(LabError):
        wait_until(lambda: not left(), "nothing of the runs is left")
    assert left() == []
    assert all(site.host.is_alive(decoy) for decoy in decoys)
    assert site.host.exec(["ls", f"{site.workdir}/leases"]).out == ""


def _next(lock, numbers):
    with lock:
        return next(numbers, None)


# ---- numbers that others have by now, and machines that were started anew


def test_a_recycled_number_is_refused(ns_lab, site):
    launched = site.launch("pass")
    site.end()
    wait_until(lambda: site.host.process(launched.token.pid) is None, "the supervisor is collected")
    stranger = site.host.recycle_pid(launched.token.pid, ["sleep", "1000"])
    said = []
    proof = site.stop(say=said.append)
    assert proof.outcome == "was gone already"
    assert f"this one at {stranger.start_ticks} for user 0" in said[0]
    assert site.host.is_alive(stranger)


def test_a_killed_supervisor_s_recycled_number_is_refused_and_its_job_stopped(ns_lab, site, nonce):
    launched = site.launch(nonce=nonce)
    (supervisor,) = [process for process in site.left() if process.pid == launched.token.pid]
    site.host.signal(supervisor, signal.SIGKILL)
    wait_until(lambda: site.host.process(launched.token.pid) is None, "the supervisor is collected")
    # While its session lives, nobody can have its number.
    for process in site.left():
        if process.environ.get(MARKER) != nonce:
            site.host.signal(process, signal.SIGKILL)
    wait_until(lambda: len(site.left()) == 1, "its session has ended")
    stranger = site.host.recycle_pid(launched.token.pid, ["sleep", "1000"])
    assert site.stop().survivors == ()
    assert site.carriers(nonce) == []
    assert site.host.is_alive(stranger)


@pytest.mark.parametrize("new_boot_id", [True, False], ids=["machine", "container"])
def test_after_a_reboot_it_is_gone_and_nothing_is_signalled(ns_lab, site, ct129, new_boot_id):
    launched = site.launch(gpus=("GPU-1",))
    ct129.reboot(new_boot_id=new_boot_id)
    stranger = ct129.recycle_pid(launched.token.pid, ["sleep", "1000"])
    assert site.stop().outcome == "gone with the reboot"
    assert ct129.is_alive(stranger)
    # Its GPU is free, and it can go on.
    assert site.launch(is_resume=True, gpus=("GPU-1",)).attempt == 2
    assert site.stop().outcome == "ended when asked"


def test_zombies_that_nobody_collects_count_as_gone(ns_lab, site, ct129, nonce):
    with ct129.not_reaping():
        launched = site.launch(argv=("/bin/sh", "-c", SH_CHILDREN + ENDINGS["wait"]), nonce=nonce)
        assert site.stop(grace_s=0.0).outcome == "had to be killed"
        assert ct129.process(launched.token.pid).state == "Z"
        assert site.stop().outcome == "was gone already"
        site.is_empty()
        assert site.launch(is_resume=True).attempt == 2
        site.stop()


# ---- hosts that are not as one would like them


@contextmanager
def as_it_is(host):
    yield


@contextmanager
def read_only_tmp(host):
    with host.read_only("/tmp"), host.read_only("/dev/shm"):
        yield


@contextmanager
def without_python3(host):
    with host.without("python3"):
        yield


@contextmanager
def without_setsid(host):
    with host.without("setsid"):
        yield


@contextmanager
def busybox_only(host):
    with host.sh_is("/usr/bin/busybox"), host.without("python3"):
        yield


@contextmanager
def hidepid(host):
    with host.hidepid():
        yield


@contextmanager
def odd_umask(host):
    with host.bashrc("umask 777\n"):
        yield


@pytest.mark.parametrize("user", ["root", "train"])
@pytest.mark.parametrize(
    "oddity", [as_it_is, read_only_tmp, without_python3, without_setsid, busybox_only, hidepid, odd_umask]
)
def test_a_run_of_many_children_on_an_odd_host(ns_lab, make_site, ct129, nonce, oddity, user):
    with oddity(ct129):
        site = make_site(ct129, user=user)
        argv = ("/bin/sh", "-c", f"{SH_CHILDREN}\necho up\n{ENDINGS['wait']}")
        launched = site.launch(argv=argv, nonce=nonce, needs_port=True, gpus=("GPU-1",))
        site.says("up")
        (supervisor,) = [process for process in site.left() if process.pid == launched.token.pid]
        assert (supervisor.start_ticks, supervisor.uid) == (
            launched.token.start_ticks,
            {"root": 0, "train": 1500}[user],
        )
        assert MARKER not in supervisor.environ
        assert len(site.carriers(nonce)) >= (6 if ct129.has("setsid") else 3)
        with pytest.raises(ConfigError, match="exists already on ct129"):
            site.launch(argv=argv)
        proof = site.stop(grace_s=0.0)
        assert (proof.outcome, proof.survivors) == ("had to be killed", ())
        site.is_empty()
        assert site.end().stop


def test_a_host_with_neither_setsid_nor_python3_says_so(ns_lab, site, ct129):
    with ct129.without("setsid", "python3"), pytest.raises(JobFailed, match="neither setsid nor python3"):
        site.launch()
    site.is_empty()
    assert not site.host.exists(f"{site.workdir}/runs")


def test_other_users_runs_are_not_ours(ns_lab, make_site, ct129, nonce):
    site = make_site(ct129, user="train")
    site.launch(nonce=nonce)
    # The same marker, under another user.
    stranger = ct129.start(["sleep", "1000"], env={MARKER: nonce}, user="root")
    assert site.stop().outcome == "ended when asked"
    assert ct129.is_alive(stranger)


# ---- full disks


@pytest.fixture
def full(ns_lab, make_site, ct129):
    """A site whose work folder is on a small disk, and what fills it or makes room."""
    with ct129.small_disk("/small", "256k"):
        site = make_site(ct129, workdir="/small/w")

        def fill(keep=0):
            ct129.exec("cat /dev/zero >/small/ballast 2>/dev/null; true")
            if keep:
                size = int(ct129.exec(["stat", "-c", "%s", "/small/ballast"]).out)
                ct129.exec(["truncate", "-s", str(size - keep), "/small/ballast"])

        site.fill, site.free = fill, lambda: ct129.exec(["rm", "-f", "/small/ballast"])
        yield site


@pytest.mark.parametrize("keep", [0, 4096, 8192, 16384, 24576, 32768, 40960])
def test_a_disk_without_room_starts_nothing_and_says_where(full, keep):
    full.host.exec(["mkdir", "/small/w"])
    full.fill(keep)
    try:
        full.launch(gpus=("GPU-1",), needs_port=True)
    except JobFailed as error:
        assert "No space left on device" in error.message or "did not come up" in error.message
        full.is_empty()
        if "No space" in error.message:
            # The name is free again.
            full.free()
            full.launch(gpus=("GPU-1",), needs_port=True)
    assert full.stop().survivors == ()


def test_a_job_that_fills_the_disk_is_neither_held_up_nor_killed(full):
    code = (
        "import os, time\nprint('up', flush=True)\n"
        "while not os.path.exists('/small/go'): time.sleep(0.01)\n"
        "for n in range(200): os.write(1, b'x' * 10_000)\n"
        "open('/dev/shm/written', 'w').close()\n"
        "while not os.path.exists('/dev/shm/go'): time.sleep(0.01)\n"
        "print('end', flush=True)\n"
    )
    full.host.exec("rm -f /dev/shm/go /dev/shm/written")
    full.launch(code)
    full.says("up")
    full.fill(8192)
    full.host.exec("mkdir /small/go 2>/dev/null || { truncate -s -4096 /small/ballast && mkdir /small/go; }")
    # Two megabytes into nothing.
    wait_until(lambda: full.host.exists("/dev/shm/written"), "all is written", 30.0)
    assert not full.exists("exit.json")
    full.free()
    full.host.exec("touch /dev/shm/go")
    assert full.end().code == 0
    notes = re.findall(r"\ndflashctl supervisor: up to (\d+) bytes of output are missing here, .*\n", full.log())
    assert notes
    lost = sum(map(int, notes))
    kept = len(re.sub(r"\ndflashctl supervisor: .*\n", "", full.log()))
    written = len("up\n") + 200 * 10_000 + len("end\n")
    # Each time, the piece that failed counts as lost whole.
    assert written <= kept + lost <= written + 4096 * len(notes)


def test_the_last_word_is_written_on_a_full_disk_too(full):
    full.launch(argv=("/bin/sh", "-c", SH_CHILDREN + ENDINGS["wait"]))
    full.fill()
    said = []
    assert full.stop(grace_s=0.0, say=said.append).survivors == ()
    assert full.end().stop
    full.is_empty()


def test_a_read_only_folder_is_told(ns_lab, make_site, ct129):
    ct129.exec(["mkdir", "-p", "/fixed"])
    site = make_site(ct129, workdir="/fixed/w")
    with ct129.read_only("/fixed"), pytest.raises(JobFailed, match=r"/fixed/w/runs.* \(Read-only file system\)"):
        site.launch()


def test_a_folder_that_belongs_to_others_is_told(ns_lab, make_site, ct129):
    ct129.exec(["mkdir", "-p", "-m", "700", "/theirs"])
    site = make_site(ct129, workdir="/theirs/w", user="train")
    with pytest.raises(JobFailed, match="Permission denied"):
        site.launch()


# ---- when the link is lost


def go_away(host):
    """No connection is left, and none can be made."""
    sessions = [process for process in host.below_sshd() if process.argv[:1] and process.argv[0].startswith("sshd")]
    host.stop_sshd()
    for session in sessions:
        host.signal_if_there(session, signal.SIGKILL)


def insist(attempt):
    """As one would: what was told not to have been done is asked for again."""
    while True:
        try:
            return attempt()
        except HostUnreachable as error:
            assert not isinstance(error, LinkLost)


def cut(host, delay_s):
    """Kills the connection, once, so long after it is called."""
    timer = threading.Timer(delay_s, host.kill_sessions)
    timer.start()
    return timer


@pytest.mark.parametrize("seed", range(NUM_CUTS // 10))
def test_a_link_that_is_cut_at_any_time_starts_and_stops_each_run_once(lab, site, seed):
    """Ten rounds each; a job says in a file of its own that it was started."""
    dice = random.Random(seed)
    for number in range(10):
        name, nonce = f"run-{number}", f"{dice.getrandbits(128):032x}"
        folder = f"{site.workdir}/runs/{name}"
        once = f"open({folder!r} + '/starts', 'a').write('x')\n{SLEEPS}"
        timer = cut(site.host, dice.uniform(0.0, 0.6))
        job = {"name": name, "nonce": nonce, "needs_port": True, "pause": lambda seconds: None}
        launched = insist(lambda: site.launch(once, **job))  # noqa: B023
        timer.join()
        assert launched.attempt == 1
        assert len(site.carriers(nonce)) == 1
        site.says("up", name)
        timer = cut(site.host, dice.uniform(0.0, 1.0))
        proof = insist(lambda: site.stop(name, pause=lambda seconds: None))  # noqa: B023
        timer.join()
        assert (proof.outcome, proof.survivors) == ("ended when asked", ())
        assert site.carriers(nonce) == []
        assert site.read("starts", name) == b"x"
        assert site.host.exec(["ls", f"{folder}/attempts"]).out == "0001\n"
    site.is_empty()
    assert site.host.exec(["ls", f"{site.workdir}/leases"]).out == ""


FAULTS = {
    "sshd is down": lambda host: host.sshd_down(),
    "link is down": lambda host: host.link_down(),
    "connections are reset": lambda host: host.tcp_reset(),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_outlives_the_link_and_a_stop_in_the_meantime_is_settled(ns_lab, site, ct129, nonce, fault):
    with ExitStack() as faults:
        # From the first word of the stop on, until it has noticed.
        said = []

        def say(line):
            said.append(line)
            if len(said) == 1:
                ct129.kill_sessions()
                faults.enter_context(FAULTS[fault](ct129))

        def pause(seconds):
            faults.close()

        site.launch(SAVES, nonce=nonce)
        site.says("up")
        proof = site.stop(grace_s=60.0, say=say, pause=pause)
    assert (proof.outcome, proof.exit_code) == ("ended when asked", 130)
    assert site.carriers(nonce) == []
    assert site.log().count("saved") == 1


def test_a_stop_that_gives_up_is_settled_by_the_next(ns_lab, site, ct129, nonce):
    site.launch(SAVES, nonce=nonce)
    site.says("up")
    now = [0.0]

    def say(line):
        if line.startswith("asked"):
            go_away(ct129)

    def pause(seconds):
        now[0] += 10.0

    with pytest.raises(LinkLost, match="has ended is unknown"):
        site.stop(say=say, pause=pause, clock=lambda: now[0])
    assert site.end().stop
    ct129.start_sshd()
    assert site.stop().outcome == "was gone already"
    assert site.carriers(nonce) == []


def test_a_host_that_cannot_be_reached_is_told_before_anything_is_done(ns_lab, site, ct129):
    site.launch()
    go_away(ct129)
    with pytest.raises(HostUnreachable) as caught:
        site.stop()
    ct129.start_sshd()
    assert caught.value.exit_code == 3
    assert not site.exists("stop.requested")
    site.stop()


def test_a_launch_whose_host_goes_away_in_the_middle_says_that_it_does_not_know(ns_lab, site, ct129, nonce):
    waited = []
    job = site.job()

    def in_the_middle():
        wait_until(lambda: site.exists("attempts/0001/launch"), "the start has begun", 30.0)
        go_away(ct129)

    away = threading.Thread(target=in_the_middle)
    away.start()
    with pytest.raises(LinkLost, match="whether run-1 was started on ct129 is unknown"):
        launch(site.shell, job, nonce=nonce, settle_s=5.0, pause=waited.append)
    away.join()
    assert len(waited) == 6
    # The host has finished what was begun.
    wait_until(lambda: len(site.carriers(nonce)) == 1, "the job is there", 30.0)
    ct129.start_sshd()
    site.stop()


# ---- what others may see


def test_nobody_else_on_the_host_sees_a_secret(ns_lab, make_site, ct129, nonce):
    site = make_site(ct129, user="train")
    value = f"s3cr3t-{random.getrandbits(64):x}"
    seen = set()
    ended = threading.Event()

    def watch():
        while not ended.is_set():
            for process in ct129.processes():
                if any(value in word for word in process.argv):
                    seen.add(("argv", process.argv))
                if process.environ.get(MARKER) != nonce and any(value in word for word in process.environ.values()):
                    seen.add(("environ", process.argv))

    watching = threading.Thread(target=watch)
    watching.start()
    site.launch(nonce=nonce, secrets=(("TOKEN", value),))
    ended.set()
    watching.join()
    assert seen == set()
    found = ct129.exec(["grep", "-rl", value, site.workdir], check=False).out.splitlines()
    mode = ct129.exec(["stat", "-c", "%a %U", f"{site.workdir}/runs/run-1/secrets.env"]).out
    site.stop()
    assert (found, mode) == ([f"{site.workdir}/runs/run-1/secrets.env"], "600 train\n")
    # Gone with the run.
    assert ct129.exec(["grep", "-rl", value, site.workdir], check=False).out == ""


def test_what_is_told_fits_what_is_there(lab, site, nonce):
    launched = site.launch(f"{HAS_CHILDREN}\n{IS_DEAF}", nonce=nonce)
    token = ProcessToken.model_validate_json(site.read("token.json"))
    assert token == launched.token
    assert token.marker == nonce
    assert site.host.exec(["cat", "/proc/sys/kernel/random/boot_id"]).out.strip() == token.boot_id
    proof = site.stop(grace_s=0.0)
    assert set(json.loads(site.read("exit.json"))["swept"]).isdisjoint(proof.survivors)


def test_a_job_waits_behind_the_jump_host_as_well(lab, make_site, kpro6, tmp_path):
    site = make_site(kpro6)
    gate = f"{kpro6.home()}/{tmp_path.name}-gate"
    site.launch(gated(gate, "sys.exit(4)"))
    kpro6.exec(f"touch {shlex.quote(gate)}")
    assert site.end().code == 4
    assert site.stop().outcome == "was gone already"
