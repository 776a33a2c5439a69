"""Hosts that reach each other: bytes go straight from kpro6 to jump, and the operator only says which."""

import json

import pytest
import yaml

from relay_site import MIB, RelaySite, digests_of, digests_on, outside, put
from sshlab.host import wait_until

pytestmark = pytest.mark.usefixtures("ns_lab")
SSH_CONFIG = """\
Host straight
  HostName 198.18.3.1
  User root
  IdentityFile ~/.ssh/id_relay
  UserKnownHostsFile ~/.ssh/known_relay
"""


class DirectSite(RelaySite):
    """The source knows the target as `straight`, and hosts.yaml says so."""

    def __init__(self, lab, folder):
        super().__init__(lab, folder)
        self.target = lab.hosts["jump"]
        hosts = yaml.safe_load(self.operator.hosts_file.read_text())
        hosts["relay"] |= {"direct": [{"source": "kpro6", "destination": "jump", "ssh": "straight"}]}
        self.operator.hosts_file.write_text(yaml.safe_dump(hosts))

    def let_in(self):
        """What a user sets up: a key that is let in, a host key that is known, a name in ssh_config."""
        self.keys = outside(self.target, "/root/.ssh/authorized_keys")
        self.keys_before = self.keys.read_text()
        self.source.exec(
            "mkdir -p ~/.ssh && rm -f ~/.ssh/id_relay && ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_relay"
        )
        key = self.source.read("/root/.ssh/id_relay.pub").decode()
        self.keys.write_text(self.keys_before + key)
        self.source.write("/root/.ssh/config", SSH_CONFIG, mode=0o600)
        self.source.write("/root/.ssh/known_relay", f"198.18.3.1 {self.target.public_key}\n")

    def shut_out(self):
        self.keys.write_text(self.keys_before)
        self.source.exec("rm -f ~/.ssh/config ~/.ssh/id_relay* ~/.ssh/known_relay")

    def tree(self, num_bytes):
        place = f"{self.workdir(self.source)}/tree"
        self.source.exec(
            f"mkdir -p {place} && head -c {num_bytes} /dev/urandom >{place}/big.bin && echo x >{place}/small"
        )
        return place, digests_on(self.source, place)

    def operator_bytes(self):
        """What has left the operator's machine."""
        lines = self.operator.run(["cat", "/proc/net/dev"]).out.splitlines()[2:]
        return sum(int(line.partition(":")[2].split()[8]) for line in lines if not line.strip().startswith("lo:"))


@pytest.fixture
def site(lab, tmp_path):
    made = DirectSite(lab, tmp_path)
    made.let_in()
    yield made
    made.operator.end_started()
    made.shut_out()


def test_bytes_go_straight_and_not_over_the_operator(site):
    place, wanted = site.tree(20 * MIB)
    dest, before = f"{site.workdir(site.target)}/there", site.operator_bytes()
    done = site.path(f"kpro6:{place}", f"jump:{dest}", "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert (told["sent_bytes"], told["hows"]["raw"]) == (20 * MIB + 2, 20 * MIB + 2)
    assert digests_on(site.target, dest) == wanted
    assert site.operator_bytes() - before < MIB
    assert site.debris(site.target, site.workdir(site.target)) == []


def test_a_checkpoint_goes_straight_and_encoded_if_asked(site):
    made = site.make(size_mb=10)
    before = site.operator_bytes()
    done = site.operator.cli("relay", "ckpt", "r1", "--to", "jump", "--encode", "always", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["hows"]["planes"] > 9e6
    there = digests_on(site.target, site.place(site.target))
    assert {path: sha for path, sha in there.items() if path != "manifest.json"} == made.for_serving
    assert site.operator_bytes() - before < MIB


@pytest.mark.slow
def test_one_that_was_killed_goes_on_straight(site):
    place, wanted = site.tree(64 * MIB)
    dest = f"{site.workdir(site.target)}/there"
    with site.source.rate(100e6):
        begun = site.operator.start_cli("relay", "path", f"kpro6:{place}", f"jump:{dest}", "--encode", "no")
        site.wait_for_chunks(dest, 2)
        begun.kill()
        begun.wait()
    before = site.operator_bytes()
    done = site.operator.cli("relay", "resume", "--json", timeout_s=120.0)
    assert done.code == 0, done.err
    assert json.loads(done.out)["sent_bytes"] <= 48 * MIB + 2
    assert digests_on(site.target, dest) == wanted
    assert site.operator_bytes() - before < MIB
    wait_until(lambda: not site.agents(site.source) and not site.agents(site.target), "agents end", 60.0)


@pytest.mark.slow
def test_a_link_that_breaks_in_between_is_taken_up_again(site):
    place, wanted = site.tree(64 * MIB)
    dest = f"{site.workdir(site.target)}/there"
    with site.source.rate(100e6):
        begun = site.operator.start_cli("relay", "path", f"kpro6:{place}", f"jump:{dest}", "--encode", "no")
        site.wait_for_chunks(dest, 2)
        pusher = next(one for one in site.agents(site.source) if "pusher" in one.argv)
        ssh = [one for one in site.source.processes() if one.outer_parent == pusher.outer_pid and one.argv[0] == "ssh"]
        site.source.signal(ssh[0], 9)
        wait_until(lambda: not site.source.is_alive(ssh[0]), "ssh has ended")
    _, err = begun.communicate(timeout=120)
    assert (begun.returncode, b"trying again" in err) == (0, True), err
    assert digests_on(site.target, dest) == wanted


def refused_key(site):
    site.keys.write_text(site.keys_before)


def unknown_host(site):
    site.source.write("/root/.ssh/known_relay", "")


def no_ssh(site):
    # Found first on the PATH of the agents, as the host's own sshd sets that.
    site.source.exec("mv /usr/bin/ssh /usr/bin/ssh.hidden")


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (refused_key, "Permission denied"),
        pytest.param(unknown_host, "Host key verification failed", marks=pytest.mark.slow),
        pytest.param(no_ssh, "No such file", marks=pytest.mark.slow),
    ],
)
def test_a_target_that_the_source_does_not_reach_is_said_and_it_goes_over_the_operator(site, trouble, said):
    place, wanted = site.tree(2 * MIB)
    dest = f"{site.workdir(site.target)}/there"
    trouble(site)
    try:
        done = site.path(f"kpro6:{place}", f"jump:{dest}")
    finally:
        site.source.exec("[ ! -e /usr/bin/ssh.hidden ] || mv /usr/bin/ssh.hidden /usr/bin/ssh")
    assert (done.code, said in done.err) == (0, True), done.err
    assert done.err.count("go through this machine instead") == 1
    assert digests_on(site.target, dest) == wanted


@pytest.mark.slow
def test_the_other_direction_is_not_meant(site, tmp_path):
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "big.bin").write_bytes(bytes(range(256)) * 4096 * 4)
    place = f"{site.workdir(site.target)}/tree"
    put(site.target, folder, place)
    before = site.operator_bytes()
    assert site.path(f"jump:{place}", f"kpro6:{site.workdir(site.source)}/back", "--encode", "no").code == 0
    assert digests_on(site.source, f"{site.workdir(site.source)}/back") == digests_of(folder)
    assert site.operator_bytes() - before > 4 * MIB
