"""Asking: the requests of a plan, turn by turn, each written down as it ends."""

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from dflashctl.engines.registry import engine_of
from dflashctl.errors import EngineUnhealthy
from dflashctl.stages.bench.account import (
    ARMS,
    Arm,
    Counted,
    EndRecord,
    Extras,
    Journal,
    RequestRecord,
    SegmentRecord,
    ServerLabel,
    TurnRecord,
    read_journal,
)
from dflashctl.stages.bench.plan import BenchPlan, Turn, request_body
from dflashctl.stages.bench.prompts import Prompt, PromptSet
from dflashctl.stages.bench.report import BenchReport
from dflashctl.stages.bench.summary import REPORT_NAME, summarise
from dflashctl.transport.openai import Answer, OpenAiClient
from dflashctl_remote.spec.events import Notice, Progress
from dflashctl_remote.spec.manifest import write_atomically

MOST_ERRORS_IN_A_ROW = 5
"""An arm that fails so often will not recover; what is left is not asked."""
Say = Callable[[Progress | Notice], None]


@dataclass(frozen=True)
class Start:
    """What one start of the command knows of itself."""

    segment: int
    machine: str
    dflashctl: str


def run_turns(plan: BenchPlan, journal: Journal, start: Start, say: Say) -> EndRecord:
    """Ask everything that is left. How it ended is the journal's last line.

    Raises EngineUnhealthy before the first line is written if a server does not answer a single token. Ctrl-C: what
    was asked and had not ended is dropped, the rest stays written, and KeyboardInterrupt goes on.
    """
    zero_s = time.monotonic()
    began_at_s = time.time()

    def clock() -> float:
        return time.monotonic() - zero_s

    try:
        return asyncio.run(_run(plan, journal, start, say, clock, began_at_s))
    except (KeyboardInterrupt, asyncio.CancelledError):
        if journal.path.is_file():
            journal.append(EndRecord(segment=start.segment, ended_s=clock(), reason="it was interrupted"))
        raise KeyboardInterrupt from None


def conclude(folder: Path, prompts: PromptSet) -> BenchReport:
    """Make run.json of what the journal holds, and write it."""
    categories = {prompt.id: prompt.category for prompt in prompts.prompts}
    report = summarise(read_journal(folder), folder, categories)
    write_atomically(folder / REPORT_NAME, report.model_dump_json(indent=2) + "\n")
    return report


async def _run(
    plan: BenchPlan, journal: Journal, start: Start, say: Say, clock: Callable[[], float], began_at_s: float
) -> EndRecord:
    async with AsyncExitStack() as stack:
        clients: dict[Arm, OpenAiClient] = {}
        for arm in ARMS:
            client = OpenAiClient(plan.servers[arm].base_url, timeout_s=plan.spec.request_timeout_s, clock=clock)
            clients[arm] = await stack.enter_async_context(client)
        servers, extras = {}, {}
        for arm in ARMS:
            servers[arm] = await _described(plan.servers[arm], clients[arm])
            extras[arm] = await _probed(plan, arm, clients[arm], say)
        journal.append(
            SegmentRecord(
                segment=start.segment,
                began_at_s=began_at_s,
                machine=start.machine,
                dflashctl=start.dflashctl,
                asked=plan.asked,
                servers=servers,
                extras=extras,
            )
        )
        asking = _Asking(plan, journal, start.segment, clients, extras, say, clock)
        await asking.warm_up()
        for number, turn in enumerate(plan.turns):
            await asking.take(number, turn)
            if asking.stop_reason is not None:
                break
    end = EndRecord(segment=start.segment, ended_s=clock(), reason=asking.stop_reason)
    journal.append(end)
    return end


async def _described(server: ServerLabel, client: OpenAiClient) -> ServerLabel:
    about = await client.get_json("/version")
    return server.model_copy(update={"about": about if isinstance(about, dict) else {}})


async def _probed(plan: BenchPlan, arm: Arm, client: OpenAiClient, say: Say) -> Extras:
    """One token, asked with all additions to the protocol, and with fewer while the server refuses them (400, 422)."""
    server = plan.servers[arm]
    attempts = (
        Extras(token_ids=True, continuous_usage=True),
        Extras(token_ids=False, continuous_usage=True),
        Extras(token_ids=False, continuous_usage=False),
    )
    for extras in attempts:
        body = request_body(plan.spec, server.model, plan.prompts.prompts[0], extras)
        answer = await client.stream_chat(body | {"max_tokens": 1})
        if answer.error is None:
            # Taken and not done is the same as refused.
            has_sizes = bool(answer.chunks) and answer.chunks[0].num_tokens is not None and extras.continuous_usage
            return Extras(token_ids=answer.token_ids is not None, continuous_usage=has_sizes)
        if answer.status not in (400, 422):
            break
        say(Notice(message=f"server {server.name} refuses an addition to the protocol: {answer.error}"))
    raise EngineUnhealthy(
        f"server {server.name} ({server.base_url}) was asked for one token and gave none: {answer.error}",
        hint=f"dflashctl deploy logs --server {server.name}",
    )


@dataclass
class _Asking:
    """The state of one segment."""

    plan: BenchPlan
    journal: Journal
    segment: int
    clients: dict[Arm, OpenAiClient]
    extras: dict[Arm, Extras]
    say: Say
    clock: Callable[[], float]
    stop_reason: str | None = None
    _num_errors: dict[Arm, int] = field(default_factory=lambda: {"baseline": 0, "speculative": 0})
    _num_done: dict[str, int] = field(default_factory=dict)

    async def warm_up(self) -> None:
        prompts = self.plan.prompts.prompts
        num = self.plan.spec.num_warmup
        for index in range(num):
            for arm in ARMS:
                answer = await self._answer(arm, prompts[index % len(prompts)])
                if answer.error is not None:
                    server = self.plan.servers[arm]
                    self.stop_reason = f"a warm-up request to server {server.name} failed: {answer.error}"
                    return
            self.say(Progress(what="warm-up", done=index + 1, total=num, unit="requests an arm"))

    async def take(self, number: int, turn: Turn) -> None:
        """One turn, between two readings of its server's counters."""
        if self.stop_reason is not None:
            return
        before = await self._counters(turn.arm)
        began_s = self.clock()
        if turn.arrivals_s:
            await asyncio.gather(
                *(
                    self._ask_at(number, turn, prompt, began_s + arrival_s)
                    for prompt, arrival_s in zip(turn.prompts, turn.arrivals_s, strict=True)
                )
            )
        else:
            waiting = deque(turn.prompts)
            await asyncio.gather(*(self._keep_asking(number, turn, waiting) for _ in range(turn.load.concurrency or 1)))
        ended_s = self.clock()
        self.journal.append(
            TurnRecord(
                segment=self.segment,
                turn=number,
                arm=turn.arm,
                load=turn.load.label,
                repeat=turn.repeat,
                block=turn.block,
                began_s=began_s,
                ended_s=ended_s,
                prompt_ids=tuple(prompt.id for prompt in turn.prompts),
                before=before,
                after=await self._counters(turn.arm),
            )
        )

    async def _keep_asking(self, number: int, turn: Turn, waiting: deque[Prompt]) -> None:
        while waiting and self.stop_reason is None:
            await self._ask(number, turn, waiting.popleft(), self.clock())

    async def _ask_at(self, number: int, turn: Turn, prompt: Prompt, intended_s: float) -> None:
        await asyncio.sleep(max(0.0, intended_s - self.clock()))
        if self.stop_reason is None:
            await self._ask(number, turn, prompt, intended_s)

    async def _ask(self, number: int, turn: Turn, prompt: Prompt, intended_s: float) -> None:
        answer = await self._answer(turn.arm, prompt)
        record = _record(self.segment, number, turn, prompt.id, intended_s, answer)
        self.journal.append(record)
        self._progress(turn.load.label)
        if answer.error is None:
            self._num_errors[turn.arm] = 0
            return
        self._num_errors[turn.arm] += 1
        server = self.plan.servers[turn.arm]
        if not await self._is_healthy(turn.arm):
            self.stop_reason = f"server {server.name} does not answer any more; its last answer: {answer.error}"
        elif self._num_errors[turn.arm] >= MOST_ERRORS_IN_A_ROW:
            self.stop_reason = (
                f"server {server.name} failed {MOST_ERRORS_IN_A_ROW} requests in a row, at last: {answer.error}"
            )

    async def _answer(self, arm: Arm, prompt: Prompt) -> Answer:
        body = request_body(self.plan.spec, self.plan.servers[arm].model, prompt, self.extras[arm])
        return await self.clients[arm].stream_chat(body)

    async def _is_healthy(self, arm: Arm) -> bool:
        readiness = engine_of(self.plan.servers[arm].engine).readiness
        return await self.clients[arm].get_text(readiness.health_path) is not None

    async def _counters(self, arm: Arm) -> Counted | None:
        engine = engine_of(self.plan.servers[arm].engine)
        text = await self.clients[arm].get_text(engine.readiness.metrics_path)
        return None if text is None else Counted.of(engine.counters(text))

    def _progress(self, load: str) -> None:
        self._num_done[load] = self._num_done.get(load, 0) + 1
        total = sum(len(turn.prompts) for turn in self.plan.turns if turn.load.label == load)
        self.say(Progress(what=load, done=self._num_done[load], total=total, unit="requests"))


def _record(segment: int, number: int, turn: Turn, prompt_id: str, intended_s: float, answer: Answer) -> RequestRecord:
    times = tuple(chunk.at_s for chunk in answer.chunks)
    return RequestRecord(
        segment=segment,
        turn=number,
        arm=turn.arm,
        load=turn.load.label,
        repeat=turn.repeat,
        prompt_id=prompt_id,
        intended_s=intended_s,
        sent_s=answer.sent_s,
        first_s=times[0] if times else None,
        last_s=times[-1] if times else None,
        ended_s=answer.ended_s,
        chunk_times_s=times,
        chunk_sizes_tokens=_sizes(chunk.num_tokens for chunk in answer.chunks),
        num_prompt_tokens=answer.num_prompt_tokens,
        num_output_tokens=answer.num_output_tokens,
        num_cached_tokens=answer.num_cached_tokens,
        finish_reason=answer.finish_reason,
        text=answer.text,
        text_sha256=hashlib.sha256(answer.text.encode()).hexdigest(),
        token_ids=answer.token_ids,
        error=answer.error,
    )


def _sizes(numbers: Iterable[int | None]) -> tuple[int, ...] | None:
    """All of them, or none: a size that is not told makes the others worthless."""
    known: list[int] = []
    for number in numbers:
        if number is None:
            return None
        known.append(number)
    return tuple(known)
