import os
import signal
import subprocess
import sys

import pytest

from dflashctl.errors import JobFailed, LinkLost
from dflashctl.transport.framing import ERR_BYTES
from dflashctl.transport.local_shell import LocalShell
from dflashctl.transport.shell import Script

LONG = "i=0; while [ $i -lt 20000 ]; do echo 0123456789012345678901234567890123456789; i=$((i + 1)); done"


@pytest.fixture
def shell():
    return LocalShell()


def test_an_answer_has_exit_code_output_and_stderr(shell):
    answer = shell.run(Script("three", 'echo "$v"; echo why >&2; exit 3', (("v", "a 'b' $c"),)))
    assert (answer.code, answer.out, answer.err) == (3, b"a 'b' $c\n", "why\n")


def test_a_flood_on_both_outputs_does_not_stall(shell):
    answer = shell.run(Script("flood", f"({LONG}) >&2; {LONG}; echo last >&2"))
    assert (answer.code, len(answer.out)) == (0, 820_000)
    assert len(answer.err) == ERR_BYTES and answer.err.endswith("last\n")


def test_a_long_script_is_read_to_its_end(shell):
    assert shell.run(Script("long", 'printf %s "$v" | wc -c', (("v", "x" * 3_000_000),))).out.strip() == b"3000000"


def test_what_a_script_leaves_running_is_neither_waited_for_nor_ended(shell):
    answer = shell.run(Script("leave", "sleep 60 & echo $!"), timeout_s=30)
    pid = int(answer.out)
    os.kill(pid, 0)
    os.kill(pid, signal.SIGKILL)


def test_a_script_that_takes_too_long_is_ended(shell):
    with pytest.raises(LinkLost, match="slow on local did not end in time"):
        shell.run(Script("slow", "sleep 60"), timeout_s=0.1)


def test_a_shell_that_ends_early_is_no_answer():
    for sh in (("/bin/sh", "-c", "exit 0"), ("/bin/sh", "-c", "cat; kill -9 $$")):
        with pytest.raises(LinkLost, match="ended without an answer"):
            LocalShell(sh=sh).run(Script("hello", "echo hi"))


def test_a_stream_gives_output_as_it_comes(shell, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    stream = shell.stream(
        Script("two", 'echo one; read -r line <"$fifo"; echo "$line"', (("fifo", str(fifo)),)),
        silence_s=20,
        timeout_s=20,
    )
    assert next(stream) == b"one\n"
    fifo.write_text("two\n")
    assert b"".join(stream) == b"two\n"


def test_a_stream_that_goes_silent_is_ended(shell):
    stream = shell.stream(Script("quiet", "echo one; sleep 60"), silence_s=0.2, timeout_s=20)
    assert next(stream) == b"one\n"
    with pytest.raises(LinkLost, match=r"said nothing for 0\.2 s"):
        next(stream)


def test_a_stream_that_fails_says_why(shell):
    with pytest.raises(JobFailed, match="bad on local failed: no such thing"):
        list(shell.stream(Script("bad", "echo no such thing >&2; exit 9"), silence_s=20, timeout_s=20))


def test_a_stream_that_nobody_reads_on_is_ended(shell, tmp_path):
    stream = shell.stream(Script("endless", "echo $$; while :; do echo x; done"), silence_s=20, timeout_s=20)
    pid = int(next(stream).split()[0])
    stream.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_ctrl_c_ends_a_script_at_once(tmp_path):
    code = (
        "from dflashctl.transport.local_shell import LocalShell\n"
        "from dflashctl.transport.shell import Script\n"
        "for piece in LocalShell().stream(Script('slow', 'echo on; sleep 60'), silence_s=60, timeout_s=60):\n"
        "    print(piece.decode(), end='', flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"on\n"
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=20)
    assert b"KeyboardInterrupt" in err


def test_a_tunnel_to_this_machine_is_the_port_itself(shell):
    with shell.tunnel(1234) as port:
        assert port == 1234
