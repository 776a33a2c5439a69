"""Several requests at once: one thread decodes, giving each running request a step in turn; the others wait in order.

No batched forward pass: what a request gets cannot depend on its company. Whoever submits is called back from the
decoding thread. A request that raises fails alone.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from dflashctl_remote.serve.generation import Generation
from dflashctl_remote.serve.metrics import Counters, Occupancy, Speculation
from dflashctl_remote.serve.text import AnswerText

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Delta:
    """What one step added to an answer."""

    text: str
    tokens: tuple[int, ...]
    num_tokens: int
    """Of the answer so far, these included."""
    finish_reason: FinishReason | None = None
    """Set in the last one."""


@dataclass(frozen=True)
class Failure:
    """The answer ends without being finished."""

    kind: Literal["error", "shutdown"]
    message: str


Deliver = Callable[[Delta | Failure], None]


@dataclass(frozen=True)
class Limits:
    """Where an answer ends."""

    max_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    """Kept as the answer's last token, and out of its text."""
    min_tokens: int = 0
    """Stop strings do not count before; stop tokens are kept away by the sampler."""


class Request:
    """One answer: what is needed to begin, and how far it is."""

    def __init__(
        self,
        request_id: str,
        begin: Callable[[], Generation],
        text: AnswerText,
        limits: Limits,
        num_prompt_tokens: int,
        deliver: Deliver,
    ) -> None:
        self.request_id = request_id
        self.begin = begin
        self.text = text
        self.limits = limits
        self.num_prompt_tokens = num_prompt_tokens
        self.deliver = deliver
        self.generation: Generation | None = None
        self.num_tokens = 0
        self.speculation = Speculation()
        self.is_cancelled = False


class QueueFull(Exception):
    """All slots are taken, and as many requests wait as may."""


class NotServing(Exception):
    """The decoding thread has ended, or is about to."""


class Scheduler:
    def __init__(
        self,
        counters: Counters,
        *,
        max_running: int,
        max_waiting: int,
        report: Callable[[str, Exception], None],
        on_end: Callable[[], None],
    ) -> None:
        """Called in the decoding thread: `report(request_id, error)` for every request that raised, `on_end` last."""
        self._counters = counters
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._report = report
        self._on_end = on_end
        self._changed = threading.Condition()
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._is_closing = False
        self._thread = threading.Thread(target=self._decode_all, name="decode", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and not self._is_closing

    @property
    def occupancy(self) -> Occupancy:
        with self._changed:
            return Occupancy(len(self._running), len(self._waiting))

    def submit(self, request: Request) -> None:
        """Raises QueueFull, NotServing."""
        with self._changed:
            if not self.is_alive:
                raise NotServing
            if len(self._running) + len(self._waiting) >= self._max_running + self._max_waiting:
                raise QueueFull
            self._waiting.append(request)
            self._changed.notify()

    def cancel(self, request: Request) -> None:
        """Nobody listens any more: the request gives up its slot or its place after the step that runs now."""
        with self._changed:
            request.is_cancelled = True
            if request in self._waiting:
                self._waiting.remove(request)
                self._counters.add_finished("abort")

    def shut_down(self) -> None:
        """Fail what runs and waits after the step that runs now, and end the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def _decode_all(self) -> None:
        try:
            while self._admit():
                for request in tuple(self._running):
                    self._advance(request)
        finally:
            try:
                self._fail_all()
            finally:
                self._on_end()

    def _admit(self) -> bool:
        """Fill free slots, waiting for a request if none runs; False: closing."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closing or self._running or self._waiting)
            while self._waiting and len(self._running) < self._max_running:
                self._running.append(self._waiting.popleft())
            return not self._is_closing

    def _advance(self, request: Request) -> None:
        if request.is_cancelled:
            self._leave(request, "abort")
            return
        try:
            delta = self._step(request)
        except Exception as error:  # noqa: BLE001 - the door of one request: the others go on
            self._leave(request, "error")
            self._report(request.request_id, error)
            request.deliver(Failure("error", f"decoding failed: {type(error).__name__}: {error}"))
            return
        if delta.finish_reason:
            self._leave(request, delta.finish_reason)
        request.deliver(delta)

    def _step(self, request: Request) -> Delta:
        is_first = request.generation is None
        if request.generation is None:
            request.generation = request.begin()
        step = request.generation.step()
        if is_first:
            self._counters.add_prompt(request.num_prompt_tokens)
        kept, finish_reason = _take(request, step.tokens)
        request.speculation.add(step)
        self._counters.add_step(step, num_kept=len(kept))
        text = request.text.take(is_last=finish_reason is not None)
        return Delta(text, kept, request.num_tokens, finish_reason)

    def _leave(self, request: Request, reason: str) -> None:
        # Before the last delivery: who has the whole answer finds it counted and the slot free.
        request.generation = None
        with self._changed:
            self._running.remove(request)
        self._counters.add_finished(reason)

    def _fail_all(self) -> None:
        with self._changed:
            self._is_closing = True
            left = [*self._running, *self._waiting]
            self._running.clear()
            self._waiting.clear()
        for request in left:
            request.generation = None
            self._counters.add_finished("abort")
            request.deliver(Failure("shutdown", "the server is shutting down"))


def _take(request: Request, tokens: Sequence[int]) -> tuple[tuple[int, ...], FinishReason | None]:
    """Add a step's tokens to the answer as far as it goes: (those kept, why it ends if it does)."""
    limits = request.limits
    for index, token in enumerate(tokens, start=1):
        request.num_tokens += 1
        if token in limits.stop_token_ids and request.num_tokens > limits.min_tokens:
            return tuple(tokens[:index]), "stop"
        if request.text.push(token, may_stop=request.num_tokens > limits.min_tokens):
            return tuple(tokens[:index]), "stop"
        if request.num_tokens >= limits.max_tokens:
            return tuple(tokens[:index]), "length"
    return tuple(tokens), None
