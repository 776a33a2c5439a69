import itertools
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflashctl.transport.framing import ERR_BYTES, LAST, ErrTail, Frame, Reader
from dflashctl.transport.shell import Script

FRAME = Frame("0123456789abcdef")
SHELLS = [("dash",), ("bash", "--posix"), ("busybox", "ash")]
PIECES = st.sampled_from(
    [
        *(b"x", b"\n", b"0123456789abcdef", b"0123456789abcdef begin", b"0123456789abcdef en", b" end 0"),
        *(FRAME.begin()[:-1], FRAME.end()[:-1], b"\0360123456789abcdef end", b"\036", b"\0\xff\r"),
    ]
)
BODIES = st.lists(PIECES, max_size=12).map(b"".join).filter(lambda body: FRAME.end() not in body + b"\036")
NOISE = st.lists(PIECES, max_size=6).map(b"".join).filter(lambda noise: FRAME.begin() not in noise + b"\036")


def answer(noise: bytes, body: bytes, code: int) -> bytes:
    return noise + FRAME.begin() + body + FRAME.end() + f"{code}\n".encode()


def split(said: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(said) + 1) for cut in cuts), len(said)]
    return [said[start:end] for start, end in itertools.pairwise(places)]


def sh(program: tuple[str, ...], said: bytes) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run([*program, "-s"], input=said, capture_output=True, timeout=20, check=False)


@settings(deadline=None)
@given(noise=NOISE, body=BODIES, code=st.integers(0, 255), cuts=st.lists(st.integers(0), max_size=8))
def test_an_answer_is_the_same_however_it_is_split(noise, body, code, cuts):
    reader = Reader(FRAME)
    got = b"".join(reader.add(piece) for piece in split(answer(noise, body, code), cuts))
    assert (got, reader.code, reader.num_noise_bytes) == (body, code, len(noise))


@settings(deadline=None)
@given(noise=NOISE, body=BODIES, cut=st.integers(0), cuts=st.lists(st.integers(0), max_size=4))
def test_an_answer_that_is_cut_anywhere_is_none(noise, body, cut, cuts):
    said = answer(noise, body, 12)
    reader = Reader(FRAME)
    got = b"".join(reader.add(piece) for piece in split(said[: cut % len(said)], cuts))
    assert reader.code is None
    assert body.startswith(got)


def test_every_single_byte_is_needed():
    said = answer(b"motd\n", b"42\n", 0)
    for length in range(len(said)):
        reader = Reader(FRAME)
        reader.add(said[:length])
        assert reader.code is None, length


def test_what_comes_after_the_answer_is_not_part_of_it():
    reader = Reader(FRAME)
    assert reader.add(answer(b"", b"yes", 0) + b"logout\n") == b"yes"
    assert reader.add(b"more") == b""


def test_the_end_of_a_line_is_not_held_back():
    reader = Reader(FRAME)
    assert reader.add(FRAME.begin() + b"one\n") == b"one\n"


def test_another_questions_answer_is_noise():
    reader = Reader(FRAME)
    other = Frame()
    assert reader.add(other.begin() + b"no" + other.end() + b"0\n") == b""
    assert not reader.has_begun and reader.code is None


@settings(deadline=None)
@given(noise=NOISE, body=BODIES, cuts=st.lists(st.integers(0), max_size=8))
def test_stderr_is_the_same_however_it_is_split(noise, body, cuts):
    err = ErrTail(FRAME)
    for piece in split(noise + FRAME.begin() + body + FRAME.end() + b"late", cuts):
        err.add(piece)
    assert err.has_ended
    assert err.text() == body.decode("utf-8", "replace")


def test_of_much_stderr_the_end_is_kept():
    err = ErrTail(FRAME)
    err.add(FRAME.begin())
    for _ in range(100):
        err.add(b"x" * 10_000)
    err.add(b"the reason\n")
    assert len(err.text()) == ERR_BYTES
    assert err.text().endswith("xthe reason\n")


def test_stderr_that_is_cut_off_is_shown_as_far_as_it_came():
    err = ErrTail(FRAME)
    err.add(FRAME.begin() + b"no such file" + FRAME.end()[:5])
    assert err.text().startswith("no such file")


@pytest.mark.parametrize("program", SHELLS, ids=" ".join)
def test_half_a_script_runs_nothing(program, tmp_path):
    """Wherever it is cut: before the first command, inside the last one, between the lines that close it."""
    mark = tmp_path / "mark"
    sent = FRAME.wrap(Script("touch", 'touch "$mark"\nif true; then :; fi\n: >"$mark"', (("mark", str(mark)),)))
    body, start = len(sent) - len(LAST), sent.index(b"touch")
    for length in sorted({0, 1, 5, start - 1, *range(start, body, 3), *range(body - 90, body)}):
        done = sh(program, sent[:length])
        reader = Reader(FRAME)
        reader.add(done.stdout)
        assert reader.code is None
        assert not mark.exists(), sent[:length]


@pytest.mark.parametrize("program", SHELLS, ids=" ".join)
@pytest.mark.parametrize(
    ("text", "out", "code"),
    [
        ("echo hi", b"hi\n", 0),
        ("printf 'no newline'", b"no newline", 0),
        ("echo a; exit 3; echo b", b"a\n", 3),
        ("set -eu; false; echo b", b"", 1),
        ("trap 'echo bye' EXIT; exit 4", b"bye\n", 4),
        ("cat; echo read nothing", b"read nothing\n", 0),
        ("cat <<END\n$v\nEND", b"it's\n", 0),
        ("# a comment is last", b"", 0),
        ("(exit 255)", b"", 255),
        ("exec sh -c 'echo another; exit 7'", b"another\n", 7),
    ],
)
def test_a_script_ends_with_its_own_exit_code(program, text, out, code):
    done = sh(program, FRAME.wrap(Script("any", text, (("v", "it's"),))))
    reader = Reader(FRAME)
    assert (reader.add(done.stdout), reader.code) == (out, code)


@pytest.mark.parametrize("program", SHELLS, ids=" ".join)
def test_stderr_of_a_script_is_framed_too(program):
    done = sh(program, FRAME.wrap(Script("any", "echo why >&2; exit 1")))
    err = ErrTail(FRAME)
    err.add(done.stderr)
    assert (err.text(), err.has_ended) == ("why\n", True)


@pytest.mark.parametrize("program", SHELLS, ids=" ".join)
@settings(deadline=None, max_examples=15)
@given(value=st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",))))
def test_a_value_arrives_as_it_is(program, value):
    done = sh(program, FRAME.wrap(Script("any", 'printf %s "$v"', (("v", value),))))
    assert Reader(FRAME).add(done.stdout) == value.encode()


def test_each_question_has_a_number_of_its_own():
    assert Frame().nonce != Frame().nonce
