import os
import random
import re
import signal
import subprocess

import pytest

from supervised_jobs import SUPERVISOR, until


class Pump:
    """pump.sh with a pipe that the test writes to."""

    def __init__(self, sh, folder, limit_bytes, num_logs):
        self.folder = folder
        reading, self.writing = os.pipe()
        argv = [sh, str(SUPERVISOR / "pump.sh"), str(limit_bytes), str(num_logs)]
        self.process = subprocess.Popen(argv, cwd=folder, stdin=reading, start_new_session=True)
        os.close(reading)

    def write(self, content: bytes) -> None:
        while content:
            content = content[os.write(self.writing, content) :]

    def end(self) -> int:
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1
        return self.process.wait()

    def pieces(self) -> dict[int, bytes]:
        """Each rotated file by its offset, and the log at the offset that the contract says it has."""
        found = {
            int(path.name[4:]): path.read_bytes()
            for path in self.folder.iterdir()
            if re.fullmatch(r"log\.\d+", path.name)
        }
        base = max((offset + len(content) for offset, content in found.items()), default=0)
        if (self.folder / "log").exists():
            found[base] = (self.folder / "log").read_bytes()
        return found

    def stream(self) -> bytes:
        """All that is there, in order; fails where a byte is missing or there twice."""
        whole = b""
        for offset, content in sorted(self.pieces().items()):
            assert offset == len(whole), sorted(self.pieces())
            whole += content
        return whole


@pytest.fixture
def pump(flavour, tmp_path):
    started = []

    def start(limit_bytes=2**20, num_logs=100) -> Pump:
        started.append(Pump(flavour.sh, tmp_path, limit_bytes, num_logs))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            os.killpg(one.process.pid, signal.SIGKILL)
            one.end()


def test_a_line_is_in_the_file_while_its_writer_lives(pump, tmp_path):
    one = pump()
    for number in range(3):
        one.write(b"line %d\n" % number)
        until(lambda: (tmp_path / "log").exists() and (tmp_path / "log").read_bytes().endswith(b"%d\n" % number))  # noqa: B023
    assert one.end() == 0
    assert one.stream() == b"line 0\nline 1\nline 2\n"


def test_bytes_of_any_kind_come_whole_through_many_rotations(pump):
    content = random.Random(1).randbytes(3 * 2**20)
    one = pump(limit_bytes=64 * 1024)
    one.write(content)
    assert one.end() == 0
    assert one.stream() == content
    assert len(one.pieces()) >= 48
    assert all(len(piece) <= 64 * 1024 + 4096 for piece in one.pieces().values())


def test_small_pieces_come_whole_through_rotations(pump):
    pieces = [b"%d " % number * (number % 40) for number in range(2000)]
    one = pump(limit_bytes=8192)
    for piece in pieces:
        one.write(piece)
    assert one.end() == 0
    assert one.stream() == b"".join(pieces)


def test_the_end_of_the_input_ends_it_and_an_empty_input_makes_an_empty_log(pump):
    one = pump()
    assert one.end() == 0
    assert one.stream() == b""


def test_the_newest_rotated_ones_stay_under_their_names(pump):
    content = random.Random(2).randbytes(256 * 1024)
    one = pump(limit_bytes=16 * 1024, num_logs=3)
    one.write(content)
    assert one.end() == 0
    pieces = one.pieces()
    assert len(pieces) in (3, 4)
    assert all(content[offset : offset + len(piece)] == piece for offset, piece in pieces.items())
    assert max(offset + len(piece) for offset, piece in pieces.items()) == len(content)


def test_a_second_pump_goes_on_where_the_first_one_ended(pump):
    content = random.Random(3).randbytes(100_000)
    for half in (content[:50_001], content[50_001:]):
        one = pump(limit_bytes=16 * 1024)
        one.write(half)
        assert one.end() == 0
    assert one.stream() == content


def test_signals_to_its_group_do_not_end_it(pump):
    one = pump()
    one.write(b"before\n")
    until(lambda: one.stream() == b"before\n")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        os.killpg(one.process.pid, number)
    one.write(b"after\n")
    assert one.end() == 0
    assert one.stream() == b"before\nafter\n"


def test_foreign_files_beside_the_log_are_left_alone(pump, tmp_path):
    for name in ("log.txt", "log.old", "log.-1"):
        (tmp_path / name).write_bytes(b"mine")
    one = pump(limit_bytes=4096, num_logs=1)
    one.write(bytes(50_000))
    assert one.end() == 0
    assert all((tmp_path / name).read_bytes() == b"mine" for name in ("log.txt", "log.old", "log.-1"))
