import os
import select
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dflashctl.config.hosts import HostsFile, HostSpec
from dflashctl.config.ssh import SshSettings
from dflashctl.errors import ConfigError, HostUnreachable, JobFailed, LinkLost
from dflashctl.transport.bulk import open_stream
from dflashctl.transport.bulk_begin import SentinelLine, begin
from dflashctl.transport.bulk_config import ssh_argv
from dflashctl.transport.bulk_process import ChildProgram
from dflashctl.transport.pool import Pool
from dflashctl.transport.shell import Script
from dflashctl.transport.ssh_config import Hop

MARK = "5f3c9a"
CIPHERS = ("aes128-gcm@openssh.com", "aes256-ctr")
needs_openssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="needs the OpenSSH client")


@pytest.fixture
def opened():
    """Opens streams to programs of this machine, and closes them."""
    streams = []

    def open_(text: str, *, connect_s: float = 30.0, **values: str):
        script = Script("program", text, (("mark", MARK), *values.items()))
        streams.append(open_stream("local", HostsFile(), SshSettings(), Pool(), script, MARK, connect_s=connect_s))
        return streams[-1]

    yield open_
    for stream in streams:
        stream.close()


def read(stream, size: int) -> bytes:
    pieces = b""
    while len(pieces) < size and (new := os.read(stream.stdout_fd, size - len(pieces))):
        pieces += new
    return pieces


def test_bytes_go_there_and_back_as_they_are(opened):
    stream = opened('echo "$mark ready"; exec cat')
    sent = bytes(range(256)) * 1000
    os.write(stream.stdin_fd, sent)
    assert read(stream, len(sent)) == sent
    assert stream.route == "local"


def test_what_comes_behind_the_line_is_left_in_the_pipe(opened):
    stream = opened('printf "noise $mark ready\\n$mark ready\\nmore"; exec cat')
    assert read(stream, len(MARK) + 11) == f"{MARK} ready\nmore".encode()


def test_a_flood_before_the_line_is_passed_over(opened):
    stream = opened('head -c 1000000 /dev/zero; printf %s "${mark%a}"; echo "$mark ready"; exec cat')
    os.write(stream.stdin_fd, b"x")
    assert read(stream, 1) == b"x"


def test_a_script_longer_than_any_buffer_is_read_to_its_end_and_nothing_of_the_bytes_behind_it(opened):
    stream = opened('printf %s "$v" | wc -c >&2; echo "$mark ready"; exec cat', v="x" * 3_000_000)
    os.write(stream.stdin_fd, b"echo not a command\n")
    assert read(stream, 19) == b"echo not a command\n"


def test_a_script_that_says_why_it_failed(opened):
    with pytest.raises(JobFailed, match=r"program on local failed: there is no python3 here$"):
        opened('echo "$mark failed there is no python3 here"; exit 3')


def test_a_script_that_ends_without_a_word_fails_with_the_end_of_its_stderr(opened):
    with pytest.raises(JobFailed, match=r"ended with exit code 7: no such thing$"):
        opened("echo no such thing >&2; exit 7")


def test_a_script_without_a_program_takes_no_bytes_for_commands(opened):
    with pytest.raises(JobFailed, match="ended with exit code 0"):
        opened("true")


def test_half_a_script_runs_not_at_all(opened, tmp_path):
    with pytest.raises(JobFailed, match="ended with exit code 2"):
        opened('touch "$file"\n(', file=str(tmp_path / "made"))
    assert not (tmp_path / "made").exists()


def test_a_program_that_is_never_ready_is_ended(opened, tmp_path):
    with pytest.raises(LinkLost, match="was sent and is not ready"):
        opened('echo $$ >"$file"; exec sleep 60', file=str(tmp_path / "pid"), connect_s=0.5)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_endless_noise_has_an_end(opened):
    with pytest.raises(LinkLost):
        opened("while :; do echo x; done", connect_s=0.5)


def test_a_shell_that_never_answers_has_run_nothing():
    program = ChildProgram(["/bin/sh", "-c", "echo go away; exit 1"], "local", is_ssh=False)
    with pytest.raises(HostUnreachable, match=r"exit code 1, having said: go away\); nothing was run") as caught:
        begin("box", program, Script("hello", ""), MARK, time.monotonic() + 30)
    assert not isinstance(caught.value, LinkLost)
    _close(program)


def test_an_error_says_how_the_program_ended_and_what_it_said_last(opened):
    stream = opened('echo "$mark ready"; read -r line; echo bad line >&2; exit 9')
    os.write(stream.stdin_fd, b"x\n")
    assert read(stream, 1) == b""
    error = stream.error("reading chunk 3")
    assert isinstance(error, LinkLost) and error.host == "local"
    assert error.message == "reading chunk 3 on local broke off: the program there ended with exit code 9: bad line"


def test_an_error_of_a_program_that_is_only_slow_says_so(opened):
    stream = opened('echo "$mark ready"; exec cat')
    assert stream.error("waiting").message == "waiting on local broke off: nothing more came"


def test_a_flood_of_stderr_does_not_stall_and_its_end_is_kept(opened):
    stream = opened('echo "$mark ready"; head -c 3000000 /dev/zero | tr "\\0" "\\n" >&2; echo last >&2; echo done')
    assert read(stream, 5) == b"done\n"
    assert stream.error("x").message.endswith(": last")


def test_letters_that_a_terminal_would_act_on_are_not_told(opened):
    with pytest.raises(JobFailed) as caught:
        opened("printf 'a\\033[2Jb\\r\\n' >&2; exit 1")
    assert ": a?[2Jb" in caught.value.message


def test_closing_ends_the_program_and_may_be_done_twice(opened, tmp_path):
    stream = opened('echo $$ >"$file"; echo "$mark ready"; exec cat', file=str(tmp_path / "pid"))
    stream.close()
    stream.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_program_that_does_not_care_is_ended(opened, tmp_path):
    text = 'echo $$ >"$file"; trap "" TERM; echo "$mark ready"; while :; do sleep 0.1; done'
    stream = opened(text, file=str(tmp_path / "pid"))
    stream.close(grace_s=0.0)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_only_the_program_itself_is_ended(opened, tmp_path):
    text = 'sleep 60 & echo $! >"$file"; echo "$mark ready"; exec sleep 60'
    stream = opened(text, file=str(tmp_path / "pid"))
    stream.close(grace_s=0.0)
    os.kill(pid := int((tmp_path / "pid").read_text()), 0)
    os.kill(pid, 9)


def test_closing_leaves_no_descriptor_open(opened):
    before = set(os.listdir("/proc/self/fd"))
    stream = opened('echo "$mark ready"; exec cat')
    stream.close()
    assert set(os.listdir("/proc/self/fd")) == before


def test_cutting_wakes_whoever_waits(opened):
    stream = opened('echo "$mark ready"; exec cat')
    stream.cut()
    assert read(stream, 1) == b""
    assert "ended with signal 9" in stream.error("waiting").message


def test_pipes_are_long_and_block(opened):
    stream = opened('echo "$mark ready"; exec sleep 60')
    assert os.get_blocking(stream.stdin_fd) and os.get_blocking(stream.stdout_fd)
    os.set_blocking(stream.stdin_fd, False)
    if sys.platform == "linux":
        assert os.write(stream.stdin_fd, bytes(2**21)) == 2**20
    stream.close(grace_s=0.0)


def test_a_host_that_is_not_there_is_refused_with_a_hint():
    hosts = HostsFile(hosts={"box": HostSpec()})
    with pytest.raises(ConfigError) as caught:
        open_stream("bax", hosts, SshSettings(), Pool(), Script("x", ""), MARK)
    assert caught.value.hint == "did you mean box?"


def test_ssh_that_is_asked_for_and_not_there_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    hosts = HostsFile(hosts={"box": HostSpec(address="127.0.0.1")})
    with pytest.raises(ConfigError, match="no `ssh` on PATH"):
        open_stream("box", hosts, SshSettings(config=tmp_path / "none"), Pool(), Script("x", ""), MARK, client="ssh")


def test_a_sentinel_is_found_wherever_it_begins_without_a_byte_more():
    text = f"{MARK[:3]}{MARK[:4]}{MARK}  x\n\n{MARK}{MARK} ready\nrest".encode()
    for begin_at in range(len(MARK) + 3):
        line, at, told = SentinelLine(MARK), begin_at, None
        while told is None:
            size = line.num_missing_bytes
            told = line.add(text[at : at + size])
            at += size
        assert told == (" x" if begin_at <= 7 else "ready")
        assert text[at - 1 : at] == b"\n"


def test_bytes_that_the_sentinel_lacks_are_asked_for_at_once():
    line = SentinelLine("s" * 40)
    assert line.num_missing_bytes == 42
    line.add(b"x" * 30 + b"s" * 10)
    assert line.num_missing_bytes == 32


HOP = Hop(
    alias="box",
    by_hand="box",
    address="10.0.0.9",
    port=2222,
    user="bob",
    host_key_name="[10.0.0.9]:2222",
    identity_files=("/k/my id",),
    known_hosts=("/h/my hosts", "/h/more"),
)


def _config(tmp_path, *route: Hop) -> str:
    argv = ssh_argv("/usr/bin/ssh", route, tmp_path, CIPHERS, 20.0, "/bin/sh -s")
    assert argv == ["/usr/bin/ssh", "-T", "-F", str(tmp_path / "ssh_config"), f"hop-{len(route) - 1}", "/bin/sh -s"]
    return (tmp_path / "ssh_config").read_text()


def _seen(tmp_path, name: str) -> dict[str, list[str]]:
    """What OpenSSH makes of it."""
    argv = ["ssh", "-G", "-F", str(tmp_path / "ssh_config"), name]
    found: dict[str, list[str]] = {}
    for line in subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines():
        key, _, value = line.partition(" ")
        found.setdefault(key, []).append(value)
    return found


@needs_openssh
def test_openssh_reads_of_a_hop_what_is_in_it(tmp_path):
    _config(tmp_path, replace(HOP, has_only_those=True, agent="/run/a b", bind_address="10.0.0.2", family="inet"))
    seen = _seen(tmp_path, "hop-0")
    wanted = {
        **{"hostname": "10.0.0.9", "port": "2222", "user": "bob", "identityfile": "/k/my id"},
        **{"userknownhostsfile": "/h/my hosts /h/more", "globalknownhostsfile": "/dev/null"},
        **{"identitiesonly": "yes", "identityagent": "/run/a b", "bindaddress": "10.0.0.2", "addressfamily": "inet"},
        **{"batchmode": "yes", "stricthostkeychecking": "true", "updatehostkeys": "false", "compression": "no"},
        **{"serveraliveinterval": "5", "serveralivecountmax": "3", "connecttimeout": "20", "requesttty": "false"},
        **{"clearallforwardings": "yes", "controlmaster": "false", "forwardagent": "no", "permitlocalcommand": "no"},
    }
    assert {key: seen[key] for key in wanted} == {key: [value] for key, value in wanted.items()}
    assert "controlpath" not in seen and "hostkeyalias" not in seen
    assert seen["ciphers"] == [",".join(CIPHERS)]


@needs_openssh
def test_each_hop_goes_through_the_one_before(tmp_path):
    _config(tmp_path, replace(HOP, proxy_command="nc -X '%' %s 22"), replace(HOP, agent=None), HOP)
    assert _seen(tmp_path, "hop-0")["proxycommand"] == ["nc -X '%%' %%s 22"]
    assert [_seen(tmp_path, f"hop-{n}")["proxyjump"] for n in (1, 2)] == [["hop-0"], ["hop-1"]]
    assert _seen(tmp_path, "hop-1")["identityagent"] == ["none"]


@needs_openssh
def test_a_host_key_by_another_name_is_asked_for_by_that(tmp_path):
    _config(tmp_path, replace(HOP, host_key_name="the-box"))
    assert _seen(tmp_path, "hop-0")["hostkeyalias"] == ["the-box"]


@needs_openssh
def test_paths_with_letters_that_ssh_config_would_read_go_by_a_link(tmp_path):
    folder = tmp_path / 'an "odd" $HOME ${x} %h\\'
    folder.mkdir()
    (folder / "id").write_text("key")
    (folder / "id.pub").write_text("public")
    _config(tmp_path, replace(HOP, identity_files=(str(folder / "id"),), revoked_keys=str(folder / "id.pub")))
    seen = _seen(tmp_path, "hop-0")
    assert Path(seen["identityfile"][0]).read_text() == "key"
    assert Path(f"{seen['identityfile'][0]}.pub").read_text() == "public"
    assert Path(seen["revokedhostkeys"][0]).read_text() == "public"


@needs_openssh
def test_without_a_key_file_the_usual_ones_are_not_tried(tmp_path):
    _config(tmp_path, replace(HOP, identity_files=(), agent="/run/agent"))
    assert _seen(tmp_path, "hop-0")["identityfile"] == ["none"]


@pytest.mark.parametrize("change", [{"user": 'b"b'}, {"address": "a\nProxyCommand id"}, {"host_key_name": "a\\"}])
def test_what_has_no_words_in_ssh_config_is_refused(tmp_path, change):
    with pytest.raises(ConfigError, match="cannot be written into an ssh_config"):
        _config(tmp_path, replace(HOP, **change))


def _close(program: ChildProgram) -> None:
    os.close(program.stdin_fd)
    os.close(program.stdout_fd)
    program.end(0.0)


def test_an_ssh_that_ends_with_255_has_lost_the_link():
    program = ChildProgram(["/bin/sh", "-c", "echo Timeout, server not responding. >&2; exit 255"], "ssh", is_ssh=True)
    select.select([program.stdout_fd], [], [])
    with pytest.raises(HostUnreachable, match=r"the link was lost: Timeout, server not responding\."):
        begin("box", program, Script("hello", ""), MARK, time.monotonic() + 30)
    assert program.code is None
    _close(program)
