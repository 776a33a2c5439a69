"""The straight lane's side of the talk with the agent at the source. Lanes with bytes in them: tests/lab."""

import threading

import pytest

from dflashctl.errors import HostUnreachable, JobFailed
from dflashctl.operations.relay.lane import AHEAD, DirectLane, SourceBad, TargetBad
from dflashctl.operations.relay.progress import Progress
from dflashctl.operations.relay.tree import Chunk


class FakePusher:
    """Answers each question at once with what it is told to say of it."""

    host = "a"

    def __init__(self, *answers):
        self.answers, self.asked, self.lane = answers, [], None

    def tell(self, op, question, id):
        self.asked.append((op, id, question))
        if len(self.asked) <= len(self.answers):
            for fields, payload in self.answers[len(self.asked) - 1]:
                threading.Thread(target=self.lane.heard, args=({"id": id, **fields}, payload)).start()

    def lost(self):
        return HostUnreachable("a is gone", host="a")


def lane_of(pusher, num_chunks):
    chunks = [Chunk(n, f"k{n}", ((0, n * 10, 10),), 1, 10, "plain") for n in range(num_chunks)]
    done, progress, left = [], Progress(), list(chunks)
    lane = DirectLane(
        pusher, lambda: left.pop(0) if left else None, lambda chunk, how: done.append((chunk.key, how)), progress, "no"
    )
    pusher.lane = lane
    return lane, done, progress


def test_chunks_are_asked_for_and_counted_as_they_are_confirmed():
    pusher = FakePusher(*[[({"ok": 1}, None)]] * 5)
    lane, done, _ = lane_of(pusher, 5)
    lane.run()
    assert sorted(done) == [(f"k{n}", "raw") for n in range(5)]
    assert [asked[2]["place"]["key"] for asked in pusher.asked] == [f"k{n}" for n in range(5)]


def test_no_more_are_asked_for_than_the_source_needs_to_have_work():
    pusher = FakePusher(*[[]] * (AHEAD - 1), [({"gone": 1}, None)])
    lane, _, _ = lane_of(pusher, 10)
    with pytest.raises(HostUnreachable):
        lane.run()
    assert len(pusher.asked) == AHEAD


def test_signs_of_life_of_a_slow_link_are_no_confirmation():
    pusher = FakePusher([])
    lane, done, progress = lane_of(pusher, 1)
    thread = threading.Thread(target=lane.run)
    thread.start()
    while not pusher.asked:
        thread.join(0.001)
    lane.heard({"id": 0, "sent": 7, "how": "planes"}, None)
    lane.heard({"id": 0, "on": 1}, None)
    assert (done, progress.sent_bytes) == ([], 7)
    lane.heard({"id": 0, "ok": 1}, None)
    thread.join()
    assert done == [("k0", "planes")]


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (({"bad": 1}, {"file": 0, "why": "changed", "text": "x was changed"}), SourceBad),
        (({"bad": 1}, {"text": "no space left"}), TargetBad),
        (({"gone": 1}, None), HostUnreachable),
    ],
)
def test_what_goes_wrong_at_either_end_is_told_apart(said, error):
    lane, _, _ = lane_of(FakePusher([said]), 1)
    with pytest.raises(error):
        lane.run()


def test_an_agent_that_talks_nonsense_is_listened_to_no_further():
    lane, _, _ = lane_of(FakePusher(), 1)
    lane.pusher.tell = lambda *_, **__: (_ for _ in ()).throw(KeyError("sent"))
    with pytest.raises(JobFailed, match="talks nonsense"):
        lane.run()
