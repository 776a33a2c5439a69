import base64
import subprocess
import threading

import pytest

from dflashctl.transport import known_hosts
from dflashctl.transport.known_hosts import HostKey, judge, lines_of


def key(word: str, kind: str = "ssh-ed25519") -> HostKey:
    return HostKey(kind, word.encode())


def text(of: HostKey) -> str:
    return f"{of.type} {base64.b64encode(of.blob).decode()}"


OURS, OTHER, RSA = key("ours"), key("other"), key("rsa", "ssh-rsa")


@pytest.fixture
def verdict(tmp_path):
    """What the lines say of a host that shows a key."""

    def find(*lines: str, name: str = "box", shown: HostKey = OURS):
        path = tmp_path / "known_hosts"
        path.write_text("".join(f"{line}\n" for line in lines))
        return judge(shown, lines_of(name, (str(path), str(tmp_path / "is-not-there"))))

    return find


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        ((), "new"),
        ((f"box {text(OURS)}",), "known"),
        ((f"Box {text(OURS)} a comment",), "known"),
        ((f"other,box,third {text(OURS)}",), "known"),
        ((f"other {text(OTHER)}",), "new"),
        ((f"box {text(OTHER)}",), "changed"),
        ((f"box {text(OTHER)}", f"box {text(OURS)}"), "known"),
        ((f"b*x {text(OURS)}",), "known"),
        ((f"b?x {text(OURS)}",), "known"),
        ((f"*,!box {text(OURS)}",), "new"),
        ((f"!box,* {text(OTHER)}",), "new"),
        ((f"# box {text(OTHER)}",), "new"),
        (("box ssh-ed25519", "box ssh-ed25519 !!!", "box"), "new"),
        ((f"@revoked box {text(OURS)}",), "revoked"),
        ((f"@revoked * {text(OURS)}", f"box {text(OURS)}"), "revoked"),
        ((f"@revoked box {text(OTHER)}", f"box {text(OURS)}"), "known"),
        ((f"@cert-authority box {text(OTHER)}",), "authority"),
        ((f"@cert-authority box {text(OTHER)}", f"box {text(OURS)}"), "known"),
        # A host that is known by one kind of key and shows another is not the one that is known.
        ((f"box {text(RSA)}",), "changed"),
    ],
)
def test_lines_decide(verdict, lines, kind):
    assert verdict(*lines).kind == kind


def test_the_line_that_decides_is_named(verdict, tmp_path):
    found = verdict("# comment", f"box {text(RSA)}", f"box {text(OTHER)}")
    assert found.kind == "changed"
    assert found.line is not None
    assert (found.line.file, found.line.number, found.line.key) == (str(tmp_path / "known_hosts"), 3, OTHER)


def test_an_odd_port_is_a_name_of_its_own(verdict):
    assert verdict(f"[box]:2222 {text(OURS)}", name="[box]:2222").kind == "known"
    assert verdict(f"[box]:2222 {text(OTHER)}", f"box {text(OURS)}", name="box").kind == "known"
    assert verdict(f"[box]:2223 {text(OTHER)}", name="[box]:2222").kind == "new"


def test_the_key_of_the_usual_port_vouches_for_an_odd_one_and_does_not_contradict_it(verdict):
    assert verdict(f"box {text(OURS)}", name="[box]:2222").kind == "known"
    assert verdict(f"box {text(OTHER)}", name="[box]:2222").kind == "new"


def test_brackets_in_a_pattern_stand_for_themselves(verdict):
    assert verdict(f"[*]:2222 {text(OURS)}", name="[box]:2222").kind == "known"
    assert verdict(f"[box] {text(OTHER)}", name="b").kind == "new"


def test_hashed_names_as_openssh_writes_them_are_found(tmp_path):
    path = tmp_path / "known_hosts"
    path.write_text(f"[box]:2222 {text(OTHER)}\nbox {text(OURS)}\n")
    # ssh-keygen takes real keys only.
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "id"], check=True)
    real = (tmp_path / "id.pub").read_text()
    path.write_text(f"[box]:2222,gate {real}")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", path], check=True, capture_output=True)
    assert "box" not in path.read_text()
    shown = HostKey("ssh-ed25519", base64.b64decode(real.split()[1]))
    for name, kind in (("[box]:2222", "known"), ("gate", "known"), ("box", "new")):
        assert judge(shown, lines_of(name, (str(path),))).kind == kind


@pytest.mark.parametrize("hashes", [False, True])
def test_a_key_that_is_kept_is_found_by_openssh_and_by_us(tmp_path, hashes):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "id"], check=True)
    shown = HostKey("ssh-ed25519", base64.b64decode((tmp_path / "id.pub").read_text().split()[1]))
    path = tmp_path / "new folder" / "known_hosts"
    assert known_hosts.add("[box]:2222", shown, str(path), hashes=hashes).kind == "known"
    assert judge(shown, lines_of("[box]:2222", (str(path),))).kind == "known"
    assert ("box" in path.read_text()) is not hashes
    found = subprocess.run(["ssh-keygen", "-F", "[box]:2222", "-f", path], capture_output=True, check=False)
    assert found.returncode == 0


def test_the_fingerprint_is_openssh_s(tmp_path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "id"], check=True)
    shown = HostKey("ssh-ed25519", base64.b64decode((tmp_path / "id.pub").read_text().split()[1]))
    said = subprocess.run(["ssh-keygen", "-lf", tmp_path / "id.pub"], capture_output=True, text=True, check=True)
    assert shown.fingerprint == said.stdout.split()[1]


def test_keeping_does_not_join_a_line_that_has_no_end(tmp_path):
    path = tmp_path / "known_hosts"
    path.write_text(f"other {text(OTHER)}")
    known_hosts.add("box", OURS, str(path), hashes=False)
    assert path.read_text() == f"other {text(OTHER)}\nbox {text(OURS)}\n"


def test_a_key_is_kept_once_however_many_ask_at_once(tmp_path):
    path = tmp_path / "known_hosts"
    verdicts = []
    threads = [
        threading.Thread(target=lambda: verdicts.append(known_hosts.add("box", OURS, str(path), hashes=True).kind))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == ["known"] * 8
    assert len(path.read_text().splitlines()) == 1


def test_a_key_that_somebody_else_kept_meanwhile_wins(tmp_path):
    path = tmp_path / "known_hosts"
    path.write_text(f"box {text(OTHER)}\n")
    assert known_hosts.add("box", OURS, str(path), hashes=False).kind == "changed"
    assert path.read_text() == f"box {text(OTHER)}\n"


def test_a_new_file_is_its_owners_alone(tmp_path):
    path = tmp_path / "ssh" / "known_hosts"
    known_hosts.add("box", OURS, str(path), hashes=False)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
