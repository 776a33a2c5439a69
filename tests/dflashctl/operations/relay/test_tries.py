import pytest

from dflashctl.errors import ArtifactError, ConfigError, HostUnreachable, JobFailed
from dflashctl.operations.relay.agent import AgentRefused
from dflashctl.operations.relay.progress import Progress
from dflashctl.operations.relay.tries import DELAYS_S, NUM_CHANGES, Again, Overtaken, until_done

AWAY = HostUnreachable("b is away", host="b")


class Attempts:
    """Ends each time as it is told: by an error, bytes that came before it, or what is given."""

    def __init__(self, *ends):
        self.ends, self.progress = list(ends), Progress()
        self.said, self.pauses, self.numbers = [], [], []

    def __call__(self, number):
        self.numbers.append(number)
        end = self.ends.pop(0)
        if isinstance(end, tuple):
            self.progress.came("raw", end[0])
            end = end[1]
        if isinstance(end, BaseException):
            raise end
        return end

    def run(self, **options):
        return until_done(self, self.progress, self.said.append, self.pauses.append, **options)


def test_what_an_attempt_gives_is_given():
    attempts = Attempts("done")
    assert (attempts.run(), attempts.numbers, attempts.said) == ("done", [1], [])


def test_a_lost_link_is_tried_again_after_longer_and_longer_pauses_then_told():
    attempts = Attempts(*[AWAY] * 20)
    with pytest.raises(HostUnreachable):
        attempts.run()
    assert tuple(attempts.pauses) == DELAYS_S
    assert attempts.said[0] == "b is away; trying again in 1 s"


def test_a_try_that_brought_something_begins_the_pauses_anew():
    attempts = Attempts(AWAY, AWAY, (5, AWAY), AWAY, "done")
    assert attempts.run() == "done"
    assert attempts.pauses == [1.0, 2.0, 1.0, 1.0]


def test_a_source_that_keeps_changing_is_given_up():
    attempts = Attempts(*[Again("a: x was changed")] * (NUM_CHANGES + 1))
    with pytest.raises(ArtifactError, match="again and again"):
        attempts.run()
    assert attempts.said == ["a: x was changed: that is sent again"] * NUM_CHANGES


def test_one_that_was_overtaken_looks_again_without_a_pause():
    attempts = Attempts(Overtaken(), None)
    assert (attempts.run(), attempts.pauses, attempts.numbers) == (None, [], [1, 2])


@pytest.mark.parametrize(
    ("kind", "error"),
    [("exists", ConfigError), ("space", JobFailed), ("incomplete", ArtifactError), ("io", JobFailed)],
)
def test_an_agents_refusal_is_told_at_once(kind, error):
    attempts = Attempts(AgentRefused("b", {"kind": kind, "text": "it cannot be"}))
    with pytest.raises(error, match="b: it cannot be"):
        attempts.run()
    assert attempts.pauses == []


def test_writers_of_a_dead_link_are_waited_for():
    attempts = Attempts(AgentRefused("b", {"kind": "writers", "text": "somebody still writes"}), "done")
    assert (attempts.run(), attempts.pauses) == ("done", [1.0])


def test_a_host_that_is_not_worth_waiting_for_is_told_at_once():
    attempts = Attempts(HostUnreachable("the store is away", host="store"))
    with pytest.raises(HostUnreachable):
        attempts.run(helps=lambda error: error.host == "b")
    assert attempts.pauses == []


def test_the_clock_stands_between_attempts():
    attempts = Attempts(AWAY, "done")
    attempts.progress.begin()
    attempts.run()
    assert attempts.progress.began_s == 0.0
