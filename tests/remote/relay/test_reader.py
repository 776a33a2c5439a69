"""What a source says to itself and to the operator. Bytes that go over links: tests/lab."""

import errno
import os
import threading
import time

import pytest

from dflashctl_remote.relay import agent, wire
from dflashctl_remote.relay.agent import Line
from dflashctl_remote.relay.reader import Link, Reader


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSOCK])
def test_where_the_kernel_sends_no_file_to_a_pipe_it_is_read(tmp_path, monkeypatch, number):
    def sendfile(*_):
        raise OSError(number, "not here")

    monkeypatch.setattr(os, "sendfile", sendfile)
    (tmp_path / "f").write_bytes(b"0123456789")
    found = os.stat(tmp_path / "f")
    taken, given = os.pipe()
    reader = Reader(Line(-1, given))
    reader.root, reader.files = str(tmp_path), [["f", found.st_size, found.st_mtime_ns, found.st_ino]]
    monkeypatch.setattr(reader, "go_on", lambda: None)
    reader.send(7, {"pieces": [[0, 2, 6]], "size": 6, "width": 1, "encode": "no"}, None)
    assert wire.parse(wire.read_exactly(taken, 96)) == {"id": 7, "how": "raw", "n": 6}
    assert wire.read_exactly(taken, 6) == b"234567"
    assert wire.parse(wire.read_exactly(taken, 96)) == {"id": 7, "ok": 1}
    reader.forget("f")
    os.close(taken)
    os.close(given)


def test_a_disk_that_fails_is_told_and_is_no_operator_that_has_gone(tmp_path, monkeypatch):
    def sendfile(out, descriptor, offset, length):
        if offset > 2:
            raise OSError(errno.EIO, "Input/output error")
        return os.write(out, os.pread(descriptor, 3, offset))

    monkeypatch.setattr(os, "sendfile", sendfile)
    (tmp_path / "f").write_bytes(b"0123456789")
    found = os.stat(tmp_path / "f")
    taken, given = os.pipe()
    reader = Reader(Line(-1, given))
    reader.root, reader.files = str(tmp_path), [["f", found.st_size, found.st_mtime_ns, found.st_ino]]
    monkeypatch.setattr(reader, "go_on", lambda: None)
    reader.send(7, {"pieces": [[0, 0, 10]], "size": 10, "width": 1, "encode": "no"}, None)
    wire.read_exactly(taken, 96)
    assert wire.read_exactly(taken, 10) == b"012" + bytes(7)
    fields, told = wire.read_message(taken)
    assert (fields["bad"], told["file"], told["why"]) == (1, 0, "unreadable")
    reader.forget("f")
    os.close(taken)
    os.close(given)


def test_holes_make_no_link_slow():
    link = Link()
    link.sent(32 << 20, 0.1)
    link.encoded(8 << 20, 4 << 20, 1.0, has_base=False)
    for _ in range(100):
        link.sent(0, 1e-5)
    assert link.sent_per_s > 300e6


def test_a_question_that_comes_slowly_is_a_sign_of_life(monkeypatch):
    taken, given = os.pipe()
    text = wire.message({"op": "open"}, ["name" * 25] * 50)
    signs = []

    def slowly():
        for at in range(0, len(text), 1000):
            os.write(given, text[at : at + 1000])
            time.sleep(0.02)

    monkeypatch.setattr(agent, "watch", signs.append)
    thread = threading.Thread(target=slowly)
    thread.start()
    fields, payload = Line(taken, -1).hear()
    thread.join()
    assert (fields["op"], len(payload)) == ("open", 50)
    # At the beginning, for each piece, and once it is there.
    assert signs.count(agent.SILENCE_S) > 4
    assert signs[-1] == agent.ANSWER_S
    os.close(taken)
    os.close(given)


def test_an_answer_that_goes_slowly_is_no_silence(monkeypatch):
    taken, given = os.pipe()
    signs = []
    monkeypatch.setattr(agent, "watch", signs.append)
    monkeypatch.setattr(agent, "PIECE_BYTES", 1000)
    Line(-1, given).say(["name" * 25] * 50, op="scan")
    assert (wire.read_message(taken)[1], signs) == (["name" * 25] * 50, [agent.ANSWER_S] * 5)
    # A word costs nothing.
    Line(-1, given).say(id=1, ok=1)
    assert len(signs) == 5
    os.close(taken)
    os.close(given)
