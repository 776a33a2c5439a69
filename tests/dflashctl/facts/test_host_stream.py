import os
import random

import pytest

from dflashctl.artifacts import RunRef
from dflashctl.errors import ArtifactError, HostUnreachable, JobFailed, LinkLost
from dflashctl.facts.host_stream import EventFeed, follow, read_piece
from dflashctl.transport.fake_shell import FakeShell
from dflashctl.transport.shell import Answer
from dflashctl_remote.spec.events import Notice

TEXT = bytes(range(256)) * 40 + b"the end\n"


@pytest.fixture
def run(tmp_path):
    ref = RunRef("r", tmp_path / 'it\'s a "run"')
    ref.folder.mkdir()
    return ref


@pytest.fixture
def rotated(run):
    """A stream of TEXT in three files, as the supervisor rotates it."""
    (run.folder / "log.0").write_bytes(TEXT[:3000])
    (run.folder / "log.3000").write_bytes(TEXT[3000:10000])
    (run.folder / "log").write_bytes(TEXT[10000:])
    return run


@pytest.fixture
def ended(run, transport):
    def end():
        token = transport.token_of(os.getpid(), "nobody").model_copy(update={"start_ticks": 2**40})
        (run.folder / "token.json").write_text(token.model_dump_json())

    return end


@pytest.mark.parametrize("offset", [0, 1, 2999, 3000, 3001, 9999, 10000, 10247])
def test_a_stream_is_read_from_any_offset_across_its_files(shell, rotated, offset):
    content = b""
    while offset + len(content) < len(TEXT):
        piece = read_piece(shell, rotated, "log", offset + len(content))
        assert piece.at == offset + len(content)
        assert piece.end == len(TEXT)
        content += piece.content
    assert content == TEXT[offset:]


def test_an_offset_from_the_end_begins_there_or_at_what_is_left(shell, rotated):
    assert read_piece(shell, rotated, "log", -248).content == TEXT[-248:]
    (rotated.folder / "log.0").unlink()
    assert read_piece(shell, rotated, "log", -99999).at == 3000


def test_what_was_rotated_away_is_skipped_and_said(shell, rotated, ended):
    (rotated.folder / "log.0").unlink()
    ended()
    said = []
    pieces = list(follow(shell, rotated, "log", offset=5, say=said.append))
    assert b"".join(piece.content for piece in pieces) == TEXT[3000:]
    assert said == ["2,995 bytes of log were rotated away before they were read"]


def test_a_stream_that_became_shorter_is_refused(shell, run):
    (run.folder / "log").write_bytes(b"abc")
    with pytest.raises(ArtifactError, match="ends at byte 3, before the 9 read so far"):
        read_piece(shell, run, "log", 9)


def test_no_run_is_refused(shell, run):
    with pytest.raises(JobFailed, match="there is no run"):
        read_piece(shell, RunRef("x", run.folder / "x"), "log", 0)


def test_following_ends_with_the_run_and_all_of_its_words(shell, run, ended):
    (run.folder / "log").write_bytes(b"one\n")
    pieces = follow(shell, run, "log", offset=0, say=pytest.fail)
    assert next(pieces).content == b"one\n"
    (run.folder / "log").write_bytes(b"one\ntwo\n")
    ended()
    assert b"".join(piece.content for piece in pieces) == b"two\n"


class _Flaky:
    """A host whose link breaks at three of five questions, before or after it answered, and that rotates meanwhile."""

    def __init__(self, shell, folder, seed):
        self._shell, self._folder, self._random = shell, folder, random.Random(seed)
        self.name, self.num_lost = shell.name, 0
        self.written = 0

    def run(self, script, *, timeout_s):
        self._go_on()
        lot = self._random.random()
        if lot < 0.3:
            self.num_lost += 1
            raise HostUnreachable("no route", host="h")
        answer = self._shell.run(script, timeout_s=timeout_s)
        if lot < 0.6:
            self.num_lost += 1
            raise LinkLost("cut", host="h")
        return answer

    def _go_on(self):
        """Write some more, sometimes into a new file."""
        log = self._folder / "log"
        if self._random.random() < 0.4 and log.exists() and log.stat().st_size:
            log.rename(self._folder / f"log.{self.written - log.stat().st_size}")
        new = TEXT[self.written : self.written + self._random.randrange(400)]
        with log.open("ab") as file:
            file.write(new)
        self.written += len(new)


@pytest.mark.parametrize("seed", range(3))
def test_no_byte_is_lost_or_doubled_through_cuts_and_rotation(shell, run, seed):
    flaky = _Flaky(shell, run.folder, seed)
    said, content = [], b""
    for piece in follow(flaky, run, "log", offset=0, say=said.append, pause=lambda seconds: None):
        content += piece.content
        if len(content) == len(TEXT):
            break
    assert content == TEXT
    assert flaky.num_lost > 5
    assert any("trying again" in line for line in said)
    assert any("answers again" in line for line in said)


def test_a_reading_that_a_rotation_disturbed_is_done_again():
    answers = [
        Answer(0, b"at=0\nend=3\ntoken=\npresence=\nexit=\nliving=\nover=0\n\nabc\nvalid=0\n", ""),
        Answer(0, b"at=0\nend=3\ntoken=\npresence=\nexit=\nliving=\nover=1\n\nabc\nvalid=1\n", ""),
    ]
    (piece,) = follow(FakeShell({"stream": answers}), RunRef("r", "/r"), "log", offset=0, say=pytest.fail)
    assert piece.content == b"abc"


def test_events_come_whole_from_pieces_that_are_not(shell, run):
    notices = [Notice(at_s=1.0, message=f"{number} \u00e4") for number in range(20)]
    lines = "".join(notice.model_dump_json() + "\n" for notice in notices).encode()
    (run.folder / "events.jsonl").write_bytes(lines)
    feed = EventFeed(run.events_path)
    piece = read_piece(shell, run, "events.jsonl", -200)
    events = feed.add(piece)
    assert [event.message for event in events] == [f"{number} \u00e4" for number in range(20)][-len(events) :]
    halves = EventFeed(run.events_path)
    whole = read_piece(shell, run, "events.jsonl", 0)
    told = [
        event
        for at in range(0, len(lines), 7)
        for event in halves.add(type(whole)(at, lines[at : at + 7], len(lines), whole.has_process, False))
    ]
    assert len(told) == 20
