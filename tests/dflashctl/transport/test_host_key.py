import base64
import re

import pytest

from dflashctl.errors import HostUnreachable
from dflashctl.transport.host_key import check_host_key, known_lines
from dflashctl.transport.known_hosts import HostKey
from dflashctl.transport.ssh_config import Hop

OURS, OTHER = HostKey("ssh-ed25519", b"ours"), HostKey("ssh-ed25519", b"other")


def line(of: HostKey, mark: str = "") -> str:
    return f"{mark}[10.0.0.9]:2222 {of.type} {base64.b64encode(of.blob).decode()}\n"


@pytest.fixture
def hop(tmp_path):
    def make(**changes) -> Hop:
        fields = {
            "alias": "box",
            "by_hand": "box",
            "address": "10.0.0.9",
            "port": 2222,
            "user": "bob",
            "host_key_name": "[10.0.0.9]:2222",
            "known_hosts": (str(tmp_path / "known_hosts"),),
        }
        return Hop(**{**fields, **changes})

    return make


def check(hop: Hop, key: HostKey) -> None:
    check_host_key(hop, key, known_lines(hop, "kpro6"), "kpro6")


def refused(hop: Hop, key: HostKey) -> HostUnreachable:
    with pytest.raises(HostUnreachable) as caught:
        check(hop, key)
    assert caught.value.exit_code == 3
    assert caught.value.host == "kpro6"
    return caught.value


def test_a_host_seen_for_the_first_time_is_known_from_then_on(hop, tmp_path):
    check(hop(), OURS)
    assert (tmp_path / "known_hosts").read_text() == line(OURS)
    check(hop(), OURS)
    assert (tmp_path / "known_hosts").read_text() == line(OURS)
    refused(hop(), OTHER)


def test_a_changed_key_is_said_with_place_and_both_fingerprints(hop, tmp_path):
    (tmp_path / "known_hosts").write_text("# mine\n" + line(OURS))
    error = refused(hop(), OTHER)
    for told in ("[10.0.0.9]:2222", f"{tmp_path / 'known_hosts'} line 2", OURS.fingerprint, OTHER.fingerprint):
        assert told in error.message
    assert "console" in error.hint


def test_nothing_that_is_said_of_a_changed_key_is_a_way_round_it(hop, tmp_path):
    (tmp_path / "known_hosts").write_text(line(OURS))
    error = refused(hop(), OTHER)
    assert not re.search(r"ssh-keygen -R|StrictHostKeyChecking|remove|delete|keyscan", error.message + error.hint)


def test_a_revoked_key_is_refused(hop, tmp_path):
    (tmp_path / "known_hosts").write_text(line(OURS) + line(OURS, "@revoked "))
    assert "line 2 revokes" in refused(hop(), OURS).message


def test_a_host_that_only_an_authority_vouches_for_is_refused(hop, tmp_path):
    (tmp_path / "known_hosts").write_text(line(OTHER, "@cert-authority "))
    assert "certificate authority" in refused(hop(), OURS).message
    assert (tmp_path / "known_hosts").read_text() == line(OTHER, "@cert-authority ")


def test_strict_checking_keeps_nothing(hop, tmp_path):
    error = refused(hop(is_strict=True), OURS)
    assert OURS.fingerprint in error.message
    assert not (tmp_path / "known_hosts").exists()


@pytest.mark.parametrize("files", [(), ("/dev/null",)])
def test_a_key_that_cannot_be_kept_anywhere_is_not_accepted(hop, files):
    assert "no file to keep the host key" in refused(hop(known_hosts=files), OURS).message


def test_a_key_that_cannot_be_written_is_not_accepted(hop, tmp_path):
    (tmp_path / "file").write_text("")
    error = refused(hop(known_hosts=(str(tmp_path / "file" / "known_hosts"),)), OURS)
    assert "cannot be" in error.message


def test_the_systems_file_counts_too(hop, tmp_path):
    (tmp_path / "system").write_text(line(OURS))
    check(hop(system_known_hosts=(str(tmp_path / "system"),)), OURS)
    assert not (tmp_path / "known_hosts").exists()


def test_a_key_in_the_list_of_revoked_ones_is_refused_though_known(hop, tmp_path):
    (tmp_path / "known_hosts").write_text(line(OURS))
    (tmp_path / "revoked").write_text(f"# gone\n{line(OTHER).split(' ', 1)[1]}")
    check(hop(revoked_keys=str(tmp_path / "revoked")), OURS)
    (tmp_path / "revoked").write_text(f"# gone\n{line(OURS).split(' ', 1)[1]}")
    assert f"which {tmp_path / 'revoked'} revokes" in refused(hop(revoked_keys=str(tmp_path / "revoked")), OURS).message


@pytest.mark.parametrize("content", [None, b"SSHKRL\n\0..."])
def test_a_list_of_revoked_keys_that_cannot_be_read_lets_nobody_through(hop, tmp_path, content):
    (tmp_path / "known_hosts").write_text(line(OURS))
    if content is not None:
        (tmp_path / "revoked").write_bytes(content)
    assert "cannot be told" in refused(hop(revoked_keys=str(tmp_path / "revoked")), OURS).message
