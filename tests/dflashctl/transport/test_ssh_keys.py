import shutil
import subprocess

import pytest

from dflashctl.transport.ssh_config import Hop
from dflashctl.transport.ssh_config_reader import home
from dflashctl.transport.ssh_keys import Keys

pytestmark = pytest.mark.skipif(shutil.which("ssh-agent") is None, reason="needs the OpenSSH client")


@pytest.fixture
def make_key(tmp_path):
    def make(name: str, kind: str = "ed25519", passphrase: str = "") -> str:
        path = tmp_path / name
        argv = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", f"{name} comment", "-f", str(path)]
        subprocess.run(argv, check=True)
        return str(path)

    return make


@pytest.fixture
def agent(tmp_path):
    """A running agent; gives what adds a key to it, and its socket."""
    path = tmp_path / "agent"
    running = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.PIPE)
    running.stdout.readline()

    def add(key: str) -> str:
        argv = ["ssh-add", "-q", key]
        subprocess.run(argv, check=True, env={"SSH_AUTH_SOCK": str(path)}, stdin=subprocess.DEVNULL)
        return str(path)

    yield add
    running.kill()
    running.wait()
    running.stdout.close()


def hop(*files: str, **changes) -> Hop:
    return Hop(
        alias="box",
        by_hand="box",
        address="10.0.0.9",
        port=22,
        user="bob",
        host_key_name="10.0.0.9",
        identity_files=files,
        **changes,
    )


def tried(of: Hop) -> tuple[list[str], list[str]]:
    """Where each key to try comes from, and why others are none."""
    keys = Keys(of)
    return [candidate.where for candidate in keys.candidates()], keys.refusals


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_a_key_file_is_tried(make_key, kind):
    path = make_key("id", kind)
    assert tried(hop(path)) == ([path], [])


def test_a_file_that_is_not_there_is_told(make_key, tmp_path):
    path = make_key("id")
    assert tried(hop(str(tmp_path / "none"), path)) == ([path], [f"{tmp_path / 'none'} is not there"])


def test_a_key_with_a_passphrase_needs_the_agent(make_key):
    path = make_key("id", passphrase="secret")
    found, refusals = tried(hop(path))
    assert found == []
    assert refusals == [f"{path} has a passphrase and is not in the agent (ssh-add {path})"]


def test_an_old_key_with_a_passphrase_is_told_too(make_key):
    path = make_key("id", "rsa", passphrase="secret")
    change = ["ssh-keygen", "-q", "-p", "-m", "PEM", "-P", "secret", "-N", "other", "-f", path]
    subprocess.run(change, check=True, capture_output=True)
    assert "has a passphrase" in tried(hop(path))[1][0]


def test_a_file_that_is_no_key_is_told(tmp_path):
    path = tmp_path / "id"
    path.write_text("hello\n")
    found, refusals = tried(hop(str(path)))
    assert found == [] and f"{path} is no key" in refusals[0]


def test_the_agents_copy_of_a_named_key_is_tried_first_and_the_file_not_again(make_key, agent):
    named, other = make_key("named"), make_key("other")
    agent(other)
    socket = agent(named)
    alone = make_key("alone")
    assert tried(hop(alone, named, agent=socket)) == (
        [f"{named} (in the agent)", "other comment (in the agent)", alone],
        [],
    )


def test_identities_only_leaves_the_agents_other_keys_out(make_key, agent):
    named, other = make_key("named"), make_key("other")
    agent(other)
    socket = agent(named)
    assert tried(hop(named, agent=socket, has_only_those=True))[0] == [f"{named} (in the agent)"]


def test_the_agent_serves_a_key_with_a_passphrase_by_its_open_part(make_key, agent, tmp_path):
    path = make_key("id")
    socket = agent(path)
    lock = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", path]
    subprocess.run(lock, check=True, capture_output=True)
    (tmp_path / "id.pub").unlink()
    assert tried(hop(path, agent=socket, has_only_those=True)) == ([f"{path} (in the agent)"], [])


def test_a_public_key_alone_names_the_agents_key(make_key, agent, tmp_path):
    socket = agent(make_key("id"))
    (tmp_path / "id").unlink()
    named = str(tmp_path / "id.pub")
    assert tried(hop(named, agent=socket, has_only_those=True)) == ([f"{named} (in the agent)"], [])


def test_an_agent_that_is_gone_is_told(make_key, tmp_path):
    path = make_key("id")
    found, refusals = tried(hop(path, agent=str(tmp_path / "gone")))
    assert found == [path]
    assert f"the agent at {tmp_path / 'gone'} does not answer" in refusals[0]


def test_a_certificate_goes_before_the_key_alone(make_key):
    path, authority = make_key("id"), make_key("ca")
    sign = ["ssh-keygen", "-q", "-s", authority, "-I", "me", "-n", "bob", f"{path}.pub"]
    subprocess.run(sign, check=True)
    keys = Keys(hop(path))
    found = [(candidate.where, candidate.key.public_blob is not None) for candidate in keys.candidates()]
    assert found == [(f"{path} with {path}-cert.pub", True), (path, False)]


def test_a_certificate_of_another_key_is_left_out(make_key):
    path, other, authority = make_key("id"), make_key("other"), make_key("ca")
    sign = ["ssh-keygen", "-q", "-s", authority, "-I", "me", "-n", "bob", f"{other}.pub"]
    subprocess.run(sign, check=True)
    assert tried(hop(path, certificate_files=(f"{other}-cert.pub",)))[0] == [path]


def test_the_usual_keys_that_are_not_there_are_not_complained_of():
    usual = [str(home() / ".ssh" / name) for name in ("id_xmss", "id_ed25519_sk")]
    assert tried(hop(*usual))[1] == []
