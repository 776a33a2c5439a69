"""Turns, places and ends, with generations that give what a test says."""

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dflashctl_remote.serve.generation import Step
from dflashctl_remote.serve.metrics import Counters
from dflashctl_remote.serve.scheduler import Delta, Failure, Limits, NotServing, QueueFull, Request, Scheduler
from dflashctl_remote.serve.text import AnswerText

LONG_WAIT_S = 30.0


class Scripted:
    """Stands for a Generation: its steps come from a queue, so that a test holds it where it likes."""

    def __init__(self) -> None:
        self.steps: queue.Queue[Step | Exception] = queue.Queue()
        self.taken = threading.Semaphore(0)

    def step(self) -> Step:
        self.taken.release()
        step = self.steps.get(timeout=LONG_WAIT_S)
        if isinstance(step, Exception):
            raise step
        return step


class Answering:
    def __init__(self, name: str, *steps: Step | Exception, max_tokens: int = 9, **limits: Any) -> None:
        self.arrivals: queue.Queue[Delta | Failure] = queue.Queue()
        self.generation = Scripted()
        for step in steps:
            self.generation.steps.put(step)
        self.request = Request(
            name,
            lambda: self.generation,  # type: ignore[arg-type, return-value]
            AnswerText(lambda ids: "".join(map(chr, ids))),
            Limits(max_tokens, **limits),
            5,
            self.arrivals.put,
        )

    def next(self) -> Delta | Failure:
        return self.arrivals.get(timeout=LONG_WAIT_S)

    def holds_the_thread(self) -> None:
        """Returns once its step is asked for."""
        assert self.generation.taken.acquire(timeout=LONG_WAIT_S)


@pytest.fixture
def reports() -> list[str]:
    return []


@pytest.fixture
def counters() -> Counters:
    return Counters("m", 3)


@pytest.fixture
def scheduler(counters: Counters, reports: list[str]) -> Iterator[Scheduler]:
    made = Scheduler(
        counters,
        max_running=2,
        max_waiting=1,
        report=lambda request_id, error: reports.append(f"{request_id}: {error}"),
        on_end=lambda: None,
    )
    made.start()
    yield made
    made.shut_down()


def step(text: str, num_drafts: int = 0, num_accepted: int = 0) -> Step:
    return Step(tuple(map(ord, text)), num_drafts, num_accepted)


def counted(counters: Counters, scheduler: Scheduler) -> dict[str, float]:
    lines = counters.exposition(lambda: scheduler.occupancy).decode().splitlines()
    pairs = [line.replace('model_name="m"', "").replace(",", "").rpartition(" ") for line in lines if line[0] != "#"]
    return {name.removeprefix("vllm:").replace("{}", ""): float(value) for name, _, value in pairs}


def test_running_requests_take_turns(scheduler: Scheduler) -> None:
    order: list[str] = []
    one, two = Answering("one"), Answering("two")
    for answering in (one, two):
        answering.request.deliver = lambda delta, name=answering.request.request_id: order.append(name)  # type: ignore[misc]
        scheduler.submit(answering.request)
    one.holds_the_thread()
    for _ in range(3):
        one.generation.steps.put(step("a"))
        two.generation.steps.put(step("b"))
        two.holds_the_thread()
        one.holds_the_thread()
    assert order == ["one", "two"] * 3
    for answering in (one, two):
        answering.generation.steps.put(step("123456789"))


def test_an_answer_ends_at_its_length_within_a_step(scheduler: Scheduler) -> None:
    answering = Answering("a", step("ab"), step("cdef", 3, 3), max_tokens=4)
    scheduler.submit(answering.request)
    assert answering.next() == Delta("ab", (97, 98), 2)
    assert answering.next() == Delta("cd", (99, 100), 4, "length")


def test_a_stop_token_is_kept_as_a_token_and_not_as_text(scheduler: Scheduler) -> None:
    answering = Answering("a", step("abc"), stop_token_ids=frozenset({98}))
    scheduler.submit(answering.request)
    assert answering.next() == Delta("a", (97, 98), 2, "stop")


def test_a_request_that_raises_fails_alone(scheduler: Scheduler, counters: Counters, reports: list[str]) -> None:
    bad, good = Answering("bad", RuntimeError("broken")), Answering("good", step("a"), step("b"), max_tokens=2)
    scheduler.submit(bad.request)
    scheduler.submit(good.request)
    assert bad.next() == Failure("error", "decoding failed: RuntimeError: broken")
    assert [good.next(), good.next()] == [Delta("a", (97,), 1), Delta("b", (98,), 2, "length")]
    assert reports == ["bad: broken"]
    assert scheduler.is_alive
    assert counted(counters, scheduler)['request_success_total{finished_reason="error"}'] == 1


def test_a_waiting_request_takes_the_slot_that_a_cancelled_one_leaves(scheduler: Scheduler, counters: Counters) -> None:
    one, two, three = Answering("one"), Answering("two"), Answering("three", step("c"), max_tokens=1)
    for answering in (one, two, three):
        scheduler.submit(answering.request)
    one.holds_the_thread()
    assert (scheduler.occupancy.num_running, scheduler.occupancy.num_waiting) == (2, 1)
    scheduler.cancel(two.request)
    one.generation.steps.put(step("a"))
    one.holds_the_thread()
    one.generation.steps.put(step("a"))
    assert three.next() == Delta("c", (99,), 1, "length")
    assert counted(counters, scheduler)['request_success_total{finished_reason="abort"}'] == 1
    one.generation.steps.put(step("123456789"))


def test_a_cancelled_request_that_waits_leaves_the_queue(scheduler: Scheduler) -> None:
    one, two, three = Answering("one"), Answering("two"), Answering("three")
    for answering in (one, two, three):
        scheduler.submit(answering.request)
    one.holds_the_thread()
    scheduler.cancel(three.request)
    assert scheduler.occupancy.num_waiting == 0
    for answering in (one, two):
        answering.generation.steps.put(step("123456789"))


def test_one_request_too_many_is_refused(scheduler: Scheduler) -> None:
    waiting = [Answering(str(n)) for n in range(3)]
    for answering in waiting:
        scheduler.submit(answering.request)
    with pytest.raises(QueueFull):
        scheduler.submit(Answering("4").request)
    for answering in waiting:
        answering.generation.steps.put(step("123456789"))


def test_shutting_down_fails_what_runs_and_what_waits(counters: Counters) -> None:
    ended = threading.Event()
    scheduler = Scheduler(counters, max_running=1, max_waiting=1, report=lambda *_: None, on_end=ended.set)
    scheduler.start()
    one, two = Answering("one", step("a")), Answering("two")
    for answering in (one, two):
        scheduler.submit(answering.request)
    assert one.next() == Delta("a", (97,), 1)
    one.generation.steps.put(step("b"))
    one.generation.steps.put(step("c"))
    scheduler.shut_down()
    assert ended.is_set()
    failures = []
    while not failures or not isinstance(failures[-1], Failure):
        failures.append(one.next())  # type: ignore[arg-type]
    assert failures[-1] == two.next() == Failure("shutdown", "the server is shutting down")
    with pytest.raises(NotServing):
        scheduler.submit(Answering("three").request)


def test_counters_follow_vllm(scheduler: Scheduler, counters: Counters) -> None:
    """Steps without drafts count nowhere; accepted drafts count before the answer is cut."""
    steps = (step("a"), step("bc", 3, 1), step("d", 3, 0), step("e"), step("fghi", 3, 3))
    answering = Answering("a", *steps, max_tokens=6)
    scheduler.submit(answering.request)
    while not getattr(answering.next(), "finish_reason", None):
        pass
    seen = counted(counters, scheduler)
    assert seen["spec_decode_num_drafts_total"] == 3
    assert seen["spec_decode_num_draft_tokens_total"] == 9
    assert seen["spec_decode_num_accepted_tokens_total"] == 4
    positions = [seen[f'spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}}'] for i in range(3)]
    assert positions == [2, 1, 1]
    assert (seen["prompt_tokens_total"], seen["generation_tokens_total"]) == (5, 6)
    assert seen['request_success_total{finished_reason="length"}'] == 1
    assert (seen["num_requests_running"], seen["num_requests_waiting"]) == (0, 0)
