"""A host behind SSH as a shell: whatever the way there, the login shell and what it prints."""

import base64
import os
import secrets
from contextlib import ExitStack

import pytest

from dflashctl.errors import HostUnreachable, JobFailed, LinkLost
from dflashctl.transport.shell import Script
from shells import Shells, at_once, logins, told, with_options
from sshlab.host import wait_until


@pytest.fixture
def shells(operator):
    made = Shells(operator)
    yield made
    made.close()


@pytest.mark.parametrize("style", ["alias", "explicit"])
@pytest.mark.parametrize("name", ["jump", "ct129", "kpro6"])
def test_each_host_answers_by_alias_and_by_address(lab, tmp_path, style, name):
    shells = Shells(lab.operator(tmp_path, style=style))
    mark = secrets.token_hex(8)
    answer = shells(name).run(Script("mark", 'echo "$m" >mark; cat mark; echo why >&2; exit 3', (("m", mark),)))
    assert (answer.code, answer.out, answer.err, answer.num_noise_bytes) == (3, f"{mark}\n".encode(), "why\n", 0)
    assert lab.hosts[name].read(f"{lab.hosts[name].home()}/mark").decode() == f"{mark}\n"
    shells.close()


@pytest.mark.parametrize("program", ["/bin/tcsh", "/usr/bin/fish", "/bin/bash", "/bin/dash"])
def test_the_login_shell_does_not_matter(ct129, shells, program):
    with ct129.login_shell(program):
        value = 'it\'s "$HOME" `id`\n!history\t*'
        assert told(shells("ct129"), 'printf %s "$v"', v=value) == value


@pytest.mark.parametrize("program", ["/bin/dash", "/bin/bash", "/usr/bin/busybox"])
def test_the_flavour_of_sh_does_not_matter(ns_lab, ct129, shells, program):
    with ct129.sh_is(program):
        assert told(shells("ct129"), 'echo "$v" | wc -l', v="a\nb").strip() == "2"


def test_what_a_bashrc_prints_is_no_part_of_an_answer(ct129, shells):
    with ct129.bashrc("echo 'welcome  to  ct129'\necho key=value >&2\nprintf 'no newline'\n"):
        answer = shells("ct129").run(Script("hello", "echo hi; echo why >&2"))
    assert (answer.out, answer.err) == (b"hi\n", "why\n")
    assert answer.noise == b"welcome  to  ct129\nno newline"


def test_a_bashrc_that_prints_megabytes_does_not_stall(ct129, shells):
    with ct129.bashrc("head -c 5000000 /dev/zero; head -c 5000000 /dev/zero >&2\n"):
        answer = shells("ct129").run(Script("count", 'printf %s "$v" | wc -c', (("v", "x" * 3_000_000),)))
    assert answer.out.strip() == b"3000000"
    assert answer.num_noise_bytes == 5_000_000


@pytest.mark.parametrize("line", ["echo go away; exit 0", "echo go away; exec >/dev/null 2>&1"])
def test_a_bashrc_that_lets_nothing_through_is_no_answer(ct129, shells, line):
    with ct129.bashrc(f"{line}\n"), pytest.raises(LinkLost, match=r"having said: go away; \.bashrc"):
        shells("ct129").run(Script("hello", "echo hi"))


def test_a_flood_of_stderr_is_drained_and_its_end_kept(ct129, shells):
    text = "head -c 5000000 /dev/zero | tr '\\0' x >&2; echo; echo last >&2; head -c 3000000 /dev/zero"
    answer = shells("ct129").run(Script("flood", text))
    assert (answer.code, len(answer.out)) == (0, 3_000_001)
    assert answer.err.endswith("xxx" + "last\n") and len(answer.err) <= 16 * 1024


@pytest.mark.parametrize("name", ["ct129", "kpro6"])
def test_a_binary_file_goes_there_and_back(lab, shells, name):
    content, shell = os.urandom(3 * 2**20), shells(name)
    path = f'{lab.hosts[name].home()}/it\'s "a" file {secrets.token_hex(4)}'
    shell.put(content, path, mode=0o640)
    assert lab.hosts[name].read(path) == content
    assert lab.hosts[name].exec(["stat", "-c", "%a", path]).out.strip() == "640"
    assert shell.get(path, limit_bytes=4 * 2**20) == content
    assert shell.get(path, offset_bytes=2**20, limit_bytes=1000) == content[2**20 : 2**20 + 1000]


def test_a_file_that_is_not_there_is_told(shells):
    with pytest.raises(JobFailed, match="could not be read on ct129"):
        shells("ct129").get("/is/not/there", limit_bytes=10)


def test_a_stream_comes_as_it_is_written(ct129, shells):
    stream = shells("ct129").stream(
        Script("two", "echo one; until [ -e go ]; do :; done; rm go; echo two"), silence_s=20, timeout_s=20
    )
    assert next(stream) == b"one\n"
    ct129.exec(["touch", "go"])
    assert b"".join(stream) == b"two\n"


def test_a_stream_that_fails_says_why(shells):
    with pytest.raises(JobFailed, match="bad on ct129 failed: no such thing"):
        list(shells("ct129").stream(Script("bad", "echo no such thing >&2; exit 9"), silence_s=20, timeout_s=20))


def test_a_stream_that_nobody_reads_on_ends_there_too(ct129, shells):
    stream = shells("ct129").stream(Script("endless", "while echo x; do :; done"), silence_s=20, timeout_s=20)
    assert next(stream).startswith(b"x\n")
    stream.close()
    wait_until(lambda: not [job for job in ct129.below_sshd() if job.argv[:1] == ("/bin/sh",)], "still there")


def test_a_stream_that_goes_silent_is_lost(shells):
    stream = shells("ct129").stream(Script("quiet", "echo one; sleep 30"), silence_s=0.5, timeout_s=20)
    assert next(stream) == b"one\n"
    with pytest.raises(LinkLost, match=r"not a byte came for 0\.5 s"):
        next(stream)


def test_a_script_that_takes_too_long_is_lost_and_the_connection_is_not(ns_lab, ct129, shells):
    before, shell = logins(ct129), shells("ct129")
    with pytest.raises(LinkLost, match=r"slow on ct129 .*took too long"):
        shell.run(Script("slow", "sleep 30"), timeout_s=1)
    assert told(shell, "echo hi") == "hi\n"
    assert logins(ct129) == before + 1


def test_all_of_a_command_takes_one_connection_a_host(ns_lab, jump, ct129, kpro6, shells):
    before = [logins(host) for host in (jump, ct129, kpro6)]
    for name in ("kpro6", "ct129", "jump", "kpro6"):
        shell = shells(name)
        assert told(shell, "echo hi") == "hi\n"
        shell.put(b"x" * 2_000_000, f"/tmp/{secrets.token_hex(8)}")
        assert b"".join(shell.stream(Script("one", "echo 1"), silence_s=20, timeout_s=20)) == b"1\n"
    assert [logins(host) for host in (jump, ct129, kpro6)] == [count + 1 for count in before]


def test_threads_that_ask_at_once_share_the_connection(ns_lab, jump, kpro6, shells):
    before = [logins(host) for host in (jump, kpro6)]
    found = at_once(20, lambda number: told(shells("kpro6"), 'sleep 0.2; echo "$n"', n=str(number)))
    assert found == [f"{number}\n" for number in range(20)]
    assert [logins(host) for host in (jump, kpro6)] == [count + 1 for count in before]


def test_the_way_may_be_a_command(ns_lab, operator, shells):
    with_options(
        operator,
        "Host kpro6",
        f"  ProxyCommand ssh -F {operator.ssh_config} -W %h:%p jump",
    )
    assert told(shells("kpro6"), "uname -n") == "kpro6\n"


def test_a_command_that_leads_nowhere_is_told(operator, shells):
    with_options(operator, "Host ct129", "  ProxyCommand exit 1 # %h")
    with pytest.raises(HostUnreachable, match="its ProxyCommand brings no SSH server"):
        shells("ct129").run(Script("hello", "echo hi"))


def test_the_agents_key_opens_the_host(lab, operator, tmp_path):
    agent = operator.start(["ssh-agent", "-D", "-a", str(tmp_path / "agent")])
    agent.stdout.readline()
    sockets = {"SSH_AUTH_SOCK": str(tmp_path / "agent")}
    assert operator.run(["ssh-add", "-q", str(lab.identity_file)], env=sockets).code == 0
    with_options(operator, f"IdentityAgent {tmp_path / 'agent'}", "IdentitiesOnly no", "IdentityFile none")
    shells = Shells(operator)
    assert told(shells("ct129"), "echo hi") == "hi\n"
    shells.close()


@pytest.mark.parametrize("is_hashed", [False, True])
def test_a_new_host_is_kept_once_and_strictly_from_then_on(lab, tmp_path, is_hashed):
    operator = lab.operator(tmp_path, is_known=False)
    with_options(operator, f"HashKnownHosts {'yes' if is_hashed else 'no'}")
    made = [Shells(operator) for _ in range(4)]
    assert at_once(4, lambda number: told(made[number]("kpro6"), "echo hi")) == ["hi\n"] * 4
    kept = operator.known_hosts.read_text().splitlines()
    assert len(kept) == 2
    for host in (lab.hosts["jump"], lab.hosts["kpro6"]):
        assert sum(line.endswith(host.public_key) for line in kept) == 1
        assert any(host.address in line for line in kept) is not is_hashed
    assert operator.ssh("-o", "StrictHostKeyChecking=yes", "kpro6", "echo hi").out == "hi\n"
    for shells in made:
        shells.close()


@pytest.mark.parametrize("name", ["ct129", "kpro6"])
def test_a_changed_host_key_is_refused_before_anybody_logs_in(lab, ns_lab, operator, shells, name):
    host = lab.hosts[name]
    other = base64.b64encode(base64.b64decode(host.public_key.split()[1])[:-32] + secrets.token_bytes(32)).decode()
    known = operator.known_hosts.read_text().replace(host.public_key, f"ssh-ed25519 {other}")
    operator.known_hosts.write_text(known)
    before = logins(host)
    with pytest.raises(HostUnreachable) as caught:
        shells(name).run(Script("hello", "echo hi"))
    assert f"{operator.known_hosts} line " in caught.value.message
    assert caught.value.message.count("SHA256:") == 2
    assert not isinstance(caught.value, LinkLost)
    assert logins(host) == before
    assert operator.known_hosts.read_text() == known


def test_of_several_host_keys_the_known_one_is_asked_for(ns_lab, ct129, operator, shells):
    """The lab's hosts have one key; here a second one is offered, of a kind that is preferred less."""
    with ExitStack() as stack:
        ct129.exec("ssh-keygen -q -t ecdsa -N '' -f /etc/ssh/second && cp /etc/ssh/lab_sshd_config /etc/ssh/before")
        ct129.exec("echo HostKey /etc/ssh/second >>/etc/ssh/lab_sshd_config")
        stack.callback(ct129.start_sshd)
        stack.callback(ct129.exec, "mv /etc/ssh/before /etc/ssh/lab_sshd_config; rm /etc/ssh/second*")
        stack.callback(ct129.stop_sshd)
        ct129.stop_sshd()
        ct129.start_sshd()
        second = " ".join(ct129.read("/etc/ssh/second.pub").decode().split()[:2])
        known = operator.known_hosts.read_text().replace(ct129.public_key, second)
        operator.known_hosts.write_text(known)
        assert told(shells("ct129"), "echo hi") == "hi\n"
        assert operator.known_hosts.read_text() == known
