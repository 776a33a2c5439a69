"""What is wrong is said in one sentence, with the right exit code, and nothing is started or written."""

import pytest

from training import TRAINS, Site


@pytest.fixture
def site(lab, tmp_path):
    return Site(lab, tmp_path)


def refused(done, code, *words):
    assert done.code == code, done.err
    message, *hints = done.err.splitlines()
    assert message.startswith("dflashctl: ")
    assert all(word in message for word in words), message
    assert len(hints) <= 1
    assert done.out == ""
    return hints[0] if hints else ""


def test_an_unknown_host(site):
    assert "did you mean ct129?" in refused(site.start("ct192", "r1", TRAINS), 2, "host ct192 is not in")


def test_a_key_file_that_is_not_there(lab, tmp_path):
    site = Site(lab, tmp_path, ct129={"identity_file": "/nowhere/key"})
    site.operator.ssh_config.write_text(site.operator.ssh_config.read_text().replace("IdentityFile", "#"))
    refused(site.start("ct129", "r1", TRAINS), 3, "ct129", "/nowhere/key")


def test_a_wrong_user(ns_lab, tmp_path):
    site = Site(ns_lab, tmp_path, ct129={"user": "nobody-there"})
    refused(site.start("ct129", "r1", TRAINS), 3, "ct129", "nobody-there")


def test_a_changed_host_key_is_never_passed_over(lab, site):
    known = site.operator.known_hosts
    lines = [line.split() for line in known.read_text().splitlines()]
    others = {line[0]: line[2] for line in lines}
    ct129, jump = lab.hosts["ct129"], lab.hosts["jump"]
    name = f"[{ct129.address}]:{ct129.port}"
    wrong = others[name if name in others else ct129.address]
    right = jump.public_key.split()[1]
    known.write_text(known.read_text().replace(wrong, right))
    before = known.read_text()
    done = site.start("ct129", "r1", TRAINS)
    hint = refused(done, 3, "ct129", "key", str(known))
    assert "StrictHostKeyChecking" not in done.err
    assert "ssh-keygen -R" not in hint
    assert known.read_text() == before


def test_a_host_that_is_new_is_learned_once_and_then_checked(lab, tmp_path):
    site = Site(lab, tmp_path, is_known=False)
    first = site.operator.cli("train", "list", "--host", "kpro6")
    assert first.err.count("is seen for the first time: its host key ssh-ed25519 SHA256:") == 2
    learned = site.operator.known_hosts.read_text()
    assert len(learned.splitlines()) == 2
    assert site.states("kpro6") == {}
    assert site.operator.known_hosts.read_text() == learned


def test_an_interpreter_without_torch(ns_lab, tmp_path, ct129):
    site = Site(ns_lab, tmp_path, ct129={"python": "/usr/bin/python3"})
    if not ct129.exists("/usr/bin/python3"):
        pytest.skip("no system python3")
    hint = refused(site.start("ct129", "r1", TRAINS), 2, "jobs on ct129 need torch", "/usr/bin/python3")
    assert "env: uv" in hint


def test_a_target_a_dataset_and_a_path_that_are_none(site):
    refused(site.start("ct129", "r1", TRAINS, "--target", "~/nowhere"), 2, "nowhere on ct129 is not a Hugging Face")
    refused(site.start("ct129", "r1", TRAINS, "--dataset", "~/nowhere"), 5, "no dataset at", "on ct129")
    refused(site.start("ct129", "r1", TRAINS, "--target", "here"), 2, "must be absolute or below ~/", "found here")


@pytest.mark.parametrize("command", ["watch", "logs", "stop", "resume"])
def test_a_run_that_is_not_there(site, command):
    hint = refused(site.operator.cli("train", command, "r9", "--host", "ct129"), 2, "there is no run r9", "on ct129")
    assert "dflashctl train list --host ct129" in hint
