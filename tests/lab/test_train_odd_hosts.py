"""The life of a run on hosts that are not as one would like them; each is started, listed, read and stopped."""

from contextlib import contextmanager

import pytest

from training import TRAINS, Site

SHELLS = ["/bin/tcsh", "/usr/bin/fish", "/bin/dash"]
NOISE = "echo welcome; echo 'state=running end 0' >&2; echo run=r9; stty -a; printf 'no line end'\n"


def live(site, host="ct129", *, run="r1"):
    """A run's life; every step's word is held against the host's processes."""
    started = site.start(host, run, TRAINS)
    assert started.code == 0, started.err
    assert site.states(host) == {run: "running"}
    assert site.processes(host, run)
    logs = site.operator.cli("train", "logs", run, "--host", host, "--raw", "-n", "2")
    assert [line.split()[0] for line in logs.out.splitlines()] == ["step", "step"]
    stopped = site.stop(host, run)
    assert (stopped.code, "ended when asked; no process of it is left" in stopped.out) == (0, True), stopped.err
    assert site.processes(host, run) == []


@pytest.mark.parametrize("shell", SHELLS)
def test_login_shells_of_other_families(ns_lab, ct129, tmp_path, shell):
    if not ct129.has(shell):
        pytest.skip(f"no {shell}")
    with ct129.login_shell(shell):
        live(Site(ns_lab, tmp_path))


def test_a_bashrc_that_talks(lab, ct129, tmp_path):
    with ct129.bashrc(NOISE):
        live(Site(lab, tmp_path))


@pytest.mark.parametrize("program", ["/usr/bin/busybox", "/bin/bash"])
def test_another_sh(ns_lab, ct129, tmp_path, program):
    if not ct129.has(program):
        pytest.skip(f"no {program}")
    with ct129.sh_is(program):
        live(Site(ns_lab, tmp_path))


@contextmanager
def hidepid(host):
    with host.hidepid():
        yield


@contextmanager
def read_only_tmp(host):
    with host.read_only("/tmp"), host.read_only("/dev/shm"):
        yield


@contextmanager
def no_python3(host):
    with host.without("python3", "python"):
        yield


@contextmanager
def nobody_reaps(host):
    with host.not_reaping():
        yield


@contextmanager
def open_umask(host):
    with host.bashrc("umask 077\n"):
        yield


@pytest.mark.parametrize("oddity", [hidepid, read_only_tmp, no_python3, nobody_reaps, open_umask])
def test_an_odd_host(ns_lab, ct129, tmp_path, oddity):
    site = Site(ns_lab, tmp_path)
    with oddity(ct129):
        live(site)


def test_a_user_who_is_not_root_where_processes_are_hidden(ns_lab, ct129, tmp_path):
    site = Site(ns_lab, tmp_path, user="train")
    with ct129.hidepid():
        live(site)


@pytest.mark.parametrize("name", ['it\'s a "work" $HOME `id` folder', "-n *", "\u00e4 b"])
def test_a_work_folder_of_any_name(lab, tmp_path, name):
    live(Site(lab, tmp_path, ct129={"workdir": f"~/{tmp_path.name}/{name}"}, workdir=name))


def test_a_full_disk_stops_a_start_with_nothing_left(ns_lab, ct129, tmp_path):
    site = Site(ns_lab, tmp_path)
    folder = f"{ct129.home()}/{site.folder_name}"
    with ct129.small_disk(folder, "1m"):
        ct129.exec(f"dd if=/dev/zero of='{folder}/filler' bs=1k count=1100 2>/dev/null; true")
        done = site.start("ct129", "r1", TRAINS)
        assert done.code in (2, 4)
        assert "free" in done.err or "no space" in done.err
        assert site.processes("ct129", "r1") == []
        assert not ct129.exists(f"{folder}/runs/r1")


def test_a_disk_that_fills_up_does_not_hide_how_a_run_ended(ns_lab, ct129, tmp_path):
    site = Site(ns_lab, tmp_path)
    folder = f"{ct129.home()}/{site.folder_name}"
    with ct129.small_disk(folder, "40m"):
        assert site.start("ct129", "r1", TRAINS).code == 0
        ct129.exec(f"dd if=/dev/zero of='{folder}/filler' bs=4k count=20000 2>/dev/null; true")
        stopped = site.stop("ct129", "r1", "--grace", "5")
        assert stopped.code == 0, stopped.err
        assert site.processes("ct129", "r1") == []
        assert site.states("ct129")["r1"] not in ("running", "starting")
        ct129.exec(f"rm '{folder}/filler'")


def test_no_room_for_checkpoints_is_said_before_anything_is_sent(ns_lab, ct129, tmp_path):
    site = Site(ns_lab, tmp_path)
    folder = f"{ct129.home()}/{site.folder_name}"
    with ct129.small_disk(folder, "200k"):
        done = site.start("ct129", "r1", TRAINS)
    assert done.code in (2, 4)
    assert "free" in done.err


def test_a_reboot_is_told_from_a_failure(ns_lab, ct129, tmp_path):
    site = Site(ns_lab, tmp_path)
    site.start("ct129", "r1", TRAINS)
    ct129.reboot()
    assert site.states("ct129") == {"r1": "lost to reboot"}
    stopped = site.stop("ct129", "r1")
    assert (stopped.code, "gone with the reboot" in stopped.out) == (0, True)
    resumed = site.operator.cli("train", "resume", "r1", "--host", "ct129", "--detach")
    assert resumed.code == 0, resumed.err
    assert site.states("ct129") == {"r1": "running"}
    site.stop("ct129", "r1")


def test_a_container_that_was_started_anew_does_not_keep_a_run_from_going_on(ns_lab, ct129, tmp_path):
    site = Site(ns_lab, tmp_path)
    site.start("ct129", "r1", TRAINS)
    ct129.reboot(new_boot_id=False)
    assert site.states("ct129") == {"r1": "lost to reboot"}
    resumed = site.operator.cli("train", "resume", "r1", "--host", "ct129", "--detach")
    assert resumed.code == 0, resumed.err
    site.stop("ct129", "r1")
