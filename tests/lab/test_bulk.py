"""Bytes to and from programs on hosts behind SSH: whatever the way, the login shell, the faults."""

import base64
import hashlib
import os
import secrets
import shutil
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from dflashctl.config.hosts import HostsFile, HostSpec
from dflashctl.config.ssh import ssh_settings
from dflashctl.errors import HostUnreachable, JobFailed, LinkLost
from dflashctl.transport.bulk import ByteStream, open_stream
from dflashctl.transport.pool import Pool
from dflashctl.transport.shell import Script
from sshlab.host import wait_until
from sshlab.processes import descendants, start_ticks

MARK = secrets.token_hex(16)
ECHO = 'echo "$mark ready"; exec cat'
FLOOD = 'echo "$mark ready"; read -r line; exec cat /dev/zero'
CLIENTS = pytest.mark.parametrize("client", ["ssh", "paramiko"])


@pytest.fixture
def opened(operator):
    """Opens streams as commands do, and closes them."""
    pool, streams = Pool(), []
    known = HostsFile.model_validate(yaml.safe_load(operator.hosts_file.read_text())).hosts

    def open_(name: str, text: str = ECHO, *, client="ssh", connect_s=30.0, values=(), **fields) -> ByteStream:
        before = known[name].model_dump(exclude_unset=True)
        hosts = HostsFile(hosts={**known, name: HostSpec.model_validate({**before, **fields})})
        script = Script("program", text, (("mark", MARK), *values))
        settings = ssh_settings(operator.env)
        stream = open_stream(name, hosts, settings, pool, script, MARK, connect_s=connect_s, client=client)
        streams.append(stream)
        return stream

    yield open_
    for stream in streams:
        stream.close(grace_s=1.0)
    pool.close()


def read(stream: ByteStream, size: int) -> bytes:
    pieces = b""
    while len(pieces) < size and (new := os.read(stream.stdout_fd, size - len(pieces))):
        pieces += new
    return pieces


def there_and_back(stream: ByteStream, sent: bytes) -> bytes:
    def send() -> None:
        rest = memoryview(sent)
        while rest:
            rest = rest[os.write(stream.stdin_fd, rest) :]

    sender = threading.Thread(target=send)
    sender.start()
    got = read(stream, len(sent))
    sender.join()
    return got


def read_to_the_end(stream: ByteStream) -> int:
    size = 0
    while new := len(os.read(stream.stdout_fd, 2**20)):
        size += new
    return size


@CLIENTS
@pytest.mark.parametrize("name", ["ct129", "kpro6"])
def test_bytes_go_there_and_back_by_any_way(opened, name, client):
    stream = opened(name, client=client)
    sent = os.urandom(5_000_001)
    assert there_and_back(stream, sent) == sent
    assert stream.route == ("ssh aes128-gcm@openssh.com" if client == "ssh" else "paramiko")


@pytest.mark.parametrize("name", ["ct129", "kpro6"])
def test_a_host_by_address_is_reached_too(lab, operator, opened, name):
    host = lab.hosts[name]
    fields = {"address": host.address, "port": host.port, "user": host.user, "ssh": None}
    fields |= {"identity_file": str(lab.identity_file)} | ({"via": "jump"} if name == "kpro6" else {})
    assert there_and_back(opened(name, **fields), b"hello") == b"hello"


@CLIENTS
@pytest.mark.parametrize("program", ["/bin/tcsh", "/usr/bin/fish", "/bin/bash", "/bin/dash"])
def test_the_login_shell_does_not_matter(ct129, opened, program, client):
    value = 'it\'s "$HOME" `id`\n!history\t*'
    with ct129.login_shell(program):
        stream = opened("ct129", 'echo "$mark ready"; printf %s "$v"', client=client, values=(("v", value),))
        assert read(stream, 100) == value.encode()


@pytest.mark.parametrize("program", ["/bin/dash", "/bin/bash", "/usr/bin/busybox"])
def test_the_flavour_of_sh_does_not_matter(ns_lab, ct129, opened, program):
    with ct129.sh_is(program):
        stream = opened("ct129", f": {'x' * 100_000}\n{ECHO}")
        assert there_and_back(stream, b"echo no command\n") == b"echo no command\n"


@CLIENTS
def test_a_bashrc_that_talks_is_passed_over(ct129, opened, client):
    with ct129.bashrc("head -c 3000000 /dev/zero; echo talk >&2; printf 'no newline'\n"):
        assert there_and_back(opened("ct129", client=client), b"hello") == b"hello"


@CLIENTS
def test_a_bashrc_that_lets_nothing_through_is_told_and_nothing_is_run(ct129, opened, client):
    with ct129.bashrc("echo go away; exit 0\n"), pytest.raises(HostUnreachable, match="having said: go away") as caught:
        opened("ct129", "touch /tmp/was-run", client=client)
    assert not isinstance(caught.value, LinkLost)
    assert not ct129.exists("/tmp/was-run")


@CLIENTS
def test_a_script_that_fails_says_why(opened, client):
    with pytest.raises(JobFailed, match="program on ct129 failed: no python3"):
        opened("ct129", 'echo "$mark failed no python3"; exit 3', client=client)
    with pytest.raises(JobFailed, match=r"ended with exit code 3: oh no"):
        opened("ct129", "echo oh no >&2; exit 3", client=client)


@CLIENTS
def test_a_flood_of_stderr_does_not_stall(opened, client):
    text = 'echo "$mark ready"; head -c 8000000 /dev/zero | tr "\\0" "\\n" >&2; echo last >&2; echo done; exit 4'
    stream = opened("ct129", text, client=client)
    assert read(stream, 6) == b"done\n"
    assert stream.error("x").message == "x on ct129 broke off: the program there ended with exit code 4: last"


@pytest.mark.parametrize("folder", ["my keys", 'odd "keys" 100% $HOME'])
def test_a_key_file_may_have_any_name(lab, opened, tmp_path, folder):
    (tmp_path / folder).mkdir()
    key = tmp_path / folder / "my key"
    shutil.copy(lab.identity_file, key)
    key.chmod(0o600)
    assert there_and_back(opened("ct129", identity_file=str(key)), b"hello") == b"hello"


@pytest.mark.parametrize("name", ["ct129", "kpro6"])
def test_a_host_that_is_new_is_known_afterwards(lab, tmp_path, name):
    operator = lab.operator(tmp_path, is_known=False)
    pool = Pool()
    hosts = HostsFile.model_validate(yaml.safe_load(operator.hosts_file.read_text()))
    script = Script("program", ECHO, (("mark", MARK),))
    stream = open_stream(name, hosts, ssh_settings(operator.env), pool, script, MARK)
    assert there_and_back(stream, b"hello") == b"hello"
    assert lab.hosts[name].public_key in operator.known_hosts.read_text()
    stream.close()
    pool.close()


def test_a_host_that_is_known_without_its_port_is_known(ct129, operator, opened):
    operator.known_hosts.write_text(f"{ct129.address} {ct129.public_key}\n")
    assert there_and_back(opened("ct129"), b"hello") == b"hello"


@pytest.mark.parametrize("name", ["ct129", "kpro6"])
@pytest.mark.parametrize("when", ["before", "after our own connection"])
def test_a_changed_host_key_is_refused(lab, ns_lab, operator, opened, name, when):
    host = lab.hosts[name]
    other = base64.b64encode(base64.b64decode(host.public_key.split()[1])[:-32] + secrets.token_bytes(32)).decode()
    if when != "before":
        opened(name)
    operator.known_hosts.write_text(operator.known_hosts.read_text().replace(host.public_key, f"ssh-ed25519 {other}"))
    with pytest.raises(HostUnreachable) as caught:
        opened(name, "touch /tmp/was-run")
    assert not isinstance(caught.value, LinkLost)
    words = "it has changed" if when == "before" else "Host key verification failed"
    assert words in caught.value.message
    assert not host.exists("/tmp/was-run")


def test_a_wrong_user_is_told_as_by_our_own_connection(lab, opened):
    with pytest.raises(HostUnreachable, match="does not let nobody-like-that in"):
        opened("ct129", user="nobody-like-that")


@contextmanager
def sshd_option(host, line: str):
    """While another sshd_config holds."""
    host.exec("cp /etc/ssh/lab_sshd_config /etc/ssh/before")
    host.exec(["/bin/sh", "-c", 'printf "%s\\n" "$1" >>/etc/ssh/lab_sshd_config', "sh", line])
    host.stop_sshd()
    host.start_sshd()
    try:
        yield
    finally:
        host.exec("mv /etc/ssh/before /etc/ssh/lab_sshd_config")
        host.stop_sshd()
        host.start_sshd()


@CLIENTS
@pytest.mark.parametrize("cipher", ["aes256-ctr", "aes256-gcm@openssh.com"])
def test_a_host_without_the_cheapest_cipher_is_reached_and_the_cipher_told(ns_lab, ct129, opened, cipher, client):
    with sshd_option(ct129, f"Ciphers {cipher}"):
        stream = opened("ct129", client=client)
        assert there_and_back(stream, b"hello") == b"hello"
        assert stream.route == (f"ssh {cipher}" if client == "ssh" else "paramiko")


@CLIENTS
@pytest.mark.parametrize("name", ["ct129", "kpro6"])
def test_a_session_that_is_killed_in_the_middle_is_told(lab, ns_lab, opened, name, client):
    stream = opened(name, FLOOD, client=client)
    os.write(stream.stdin_fd, b"\n")
    assert read(stream, 2**20) == bytes(2**20)
    lab.hosts[name].kill_sessions()
    read_to_the_end(stream)
    error = stream.error("reading")
    assert isinstance(error, LinkLost)
    assert error.message.startswith(f"reading on {name} broke off: the link was lost")
    assert "\n" not in error.message and "\r" not in error.message


def test_a_session_that_is_killed_while_written_to_breaks_the_pipe(ns_lab, ct129, opened):
    stream = opened("ct129", 'echo "$mark ready"; exec cat >/dev/null')
    os.write(stream.stdin_fd, bytes(2**20))
    ct129.kill_sessions()
    with pytest.raises(BrokenPipeError):
        while True:
            os.write(stream.stdin_fd, bytes(2**20))
    assert "the link was lost" in stream.error("writing").message


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ct129", "kpro6"])
def test_a_link_that_stays_down_is_lost_in_bounded_time(lab, ns_lab, opened, name):
    stream = opened(name, FLOOD)
    os.write(stream.stdin_fd, b"\n")
    read(stream, 2**20)
    with lab.hosts[name].link_down():
        down_s = time.monotonic()
        read_to_the_end(stream)
        assert time.monotonic() - down_s < 40
        error = stream.error("reading")
    assert "the link was lost" in error.message and "not responding" in error.message


@pytest.mark.slow
def test_a_link_that_stays_down_while_written_to_is_lost_in_bounded_time(ns_lab, ct129, opened):
    stream = opened("ct129", 'echo "$mark ready"; exec cat >/dev/null')
    with ct129.link_down(), pytest.raises(BrokenPipeError):
        while True:
            os.write(stream.stdin_fd, bytes(2**20))
    assert "not responding" in stream.error("writing").message


@pytest.mark.slow
def test_a_link_that_stays_down_is_lost_by_paramiko_too(ns_lab, ct129, opened):
    stream = opened("ct129", FLOOD, client="paramiko")
    os.write(stream.stdin_fd, b"\n")
    read(stream, 2**20)
    with ct129.link_down():
        read_to_the_end(stream)
    assert "the link was lost" in stream.error("reading").message


@CLIENTS
def test_a_host_that_is_silent_while_opened_is_given_up_in_time(ns_lab, ct129, opened, client):
    opened("ct129")
    with ct129.sshd_paused(), pytest.raises(HostUnreachable) as caught:
        opened("ct129", client=client, connect_s=2.0)
    assert not isinstance(caught.value, LinkLost)


@CLIENTS
def test_closing_ends_the_program_on_the_host(lab, opened, client):
    host, name = lab.hosts["kpro6"], "kpro6"
    for text in (ECHO, FLOOD):
        stream = opened(name, text, client=client)
        os.write(stream.stdin_fd, b"\n")
        read(stream, 1)
        stream.close()
        wait_until(lambda: not programs(host), "the program runs on")


@CLIENTS
def test_closing_leaves_nothing_here(opened, client):
    opened("kpro6", client=client).close()
    before, threads = set(os.listdir("/proc/self/fd")), threading.active_count()
    opened("kpro6", client=client).close()
    wait_until(lambda: set(os.listdir("/proc/self/fd")) == before, "a descriptor is left")
    wait_until(lambda: threading.active_count() <= threads, "threads are left")
    wait_until(lambda: not ssh_below(os.getpid()), "an ssh is left")


def test_cutting_wakes_whoever_waits(ct129, opened):
    for client in ("ssh", "paramiko"):
        stream = opened("ct129", client=client)
        waiter = threading.Thread(target=read, args=(stream, 1))
        waiter.start()
        stream.cut()
        waiter.join(10)
        assert not waiter.is_alive()
        assert "the link was lost" in stream.error("waiting").message


def programs(host) -> list[tuple[str, ...]]:
    return [job.argv for job in (*host.below_sshd(), *host.jobs()) if job.argv[:1] in (("cat",), ("/bin/sh",))]


def ssh_below(pid: int) -> list[tuple[int, int]]:
    found = [process for process in descendants(pid) if Path(process.argv[0] if process.argv else "").name == "ssh"]
    return [(process.pid, process.start_ticks) for process in found]


@pytest.mark.parametrize("is_busy", [False, True])
def test_an_operator_that_is_killed_leaves_no_ssh_and_no_program(kpro6, operator, is_busy):
    code = (
        "import os, pathlib, time, yaml\n"
        "from dflashctl.config.hosts import HostsFile\n"
        "from dflashctl.config.ssh import ssh_settings\n"
        "from dflashctl.transport.bulk import open_stream\n"
        "from dflashctl.transport.pool import Pool\n"
        "from dflashctl.transport.shell import Script\n"
        "hosts = HostsFile.model_validate(yaml.safe_load(pathlib.Path(os.environ['DFLASHCTL_HOSTS']).read_text()))\n"
        f"text, mark = {FLOOD if is_busy else ECHO!r}, {MARK!r}\n"
        "script = Script('program', text, (('mark', mark),), (('token', 'hush-hush'),))\n"
        "stream = open_stream('kpro6', hosts, ssh_settings(os.environ), Pool(), script, mark)\n"
        "os.write(stream.stdin_fd, b'\\n')\n"
        "os.read(stream.stdout_fd, 1)\n"
        "print('open', flush=True)\n"
        "time.sleep(600)\n"
    )
    child = operator.start([sys.executable, "-c", code], env={"TMPDIR": str(operator.folder)})
    assert child.stdout.readline() == b"open\n"
    below = descendants(child.pid)
    # One for the host, and one below it for the jump.
    assert [Path(process.argv[0]).name for process in below] == ["ssh", "ssh"]
    assert not [process for process in below if "hush-hush" in repr((process.argv, process.environ))]
    assert not list(operator.folder.glob("dflashctl-ssh-*"))
    assert programs(kpro6)
    child.kill()
    child.wait()
    wait_until(lambda: not [p for p in below if start_ticks(p.pid) == p.start_ticks], "an ssh is left")
    wait_until(lambda: not programs(kpro6), "the program runs on")


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["to", "from"])
def test_paramiko_carries_more_than_it_takes_new_keys_after_by_itself(opened, direction):
    """At 512 MiB it would, and hang now and then."""
    size, block = 600 * 2**20, os.urandom(2**20)
    wanted = hashlib.sha256(block * (size // len(block))).hexdigest()
    if direction == "to":
        stream = opened("ct129", f'echo "$mark ready"; head -c {size} | sha256sum', client="paramiko")
        for _ in range(size // len(block)):
            rest = memoryview(block)
            while rest:
                rest = rest[os.write(stream.stdin_fd, rest) :]
        assert read(stream, 64).decode() == wanted
        return
    text = f"head -c {len(block)} >block; for i in $(seq {size // len(block)}); do cat block; done; rm block"
    stream = opened("ct129", f'echo "$mark ready"; {text}', client="paramiko")
    os.write(stream.stdin_fd, block)
    found = hashlib.sha256()
    while new := os.read(stream.stdout_fd, 2**20):
        found.update(new)
    assert found.hexdigest() == wanted
