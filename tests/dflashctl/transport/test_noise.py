import pytest

from dflashctl.transport.framing import NOISE_BYTES, Frame, Reader
from dflashctl.transport.local_shell import LocalShell
from dflashctl.transport.shell import Script

FRAME = Frame("n0nce")


@pytest.mark.parametrize("size", [1, 7, 100000])
def test_noise_before_an_answer_is_counted_however_it_arrives(size):
    reader = Reader(FRAME)
    said = b"Welcome!\n" + FRAME.begin() + b"yes" + FRAME.end() + b"0\n"
    body = b"".join(reader.add(said[at : at + size]) for at in range(0, len(said), size))
    assert (body, reader.code) == (b"yes", 0)
    assert (reader.num_noise_bytes, reader.noise) == (9, b"Welcome!\n")


def test_of_much_noise_only_the_start_is_kept():
    reader = Reader(FRAME)
    reader.add(b"x" * 100_000 + FRAME.begin())
    assert reader.num_noise_bytes == 100_000
    assert reader.noise == b"x" * NOISE_BYTES


def test_silent_shell_has_no_noise():
    assert LocalShell().run(Script("hello", "echo hi")).num_noise_bytes == 0


def test_noise_of_a_login_shell_is_told_beside_the_answer():
    noisy = LocalShell(sh=("/bin/sh", "-c", "echo motd; exec /bin/sh -s"))
    answer = noisy.run(Script("hello", "echo hi"))
    assert (answer.out, answer.noise) == (b"hi\n", b"motd\n")
