"""A benchmark as a plan: who is asked what, in which order. Pure but for the prompts' file."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflashctl.config.bench import BenchSpec
from dflashctl.errors import ConfigError
from dflashctl.records import ServerRecord
from dflashctl.stages.bench.account import (
    ARMS,
    Arm,
    Asked,
    Extras,
    RequestRecord,
    SegmentRecord,
    ServerLabel,
)
from dflashctl.stages.bench.prompts import Prompt, PromptSet

TURN_ROUNDS = 4
"""Above one request at a time a turn holds so many prompts a place: its ramp and its tail are part of the figures."""
Key = tuple[Arm, str, int, str]


@dataclass(frozen=True)
class Load:
    """How requests come: so many at any time, or at random times."""

    concurrency: int | None
    rate_per_s: float | None

    @property
    def label(self) -> str:
        return f"c={self.concurrency}" if self.rate_per_s is None else f"rate={self.rate_per_s:g}/s"


SINGLE = Load(1, None).label


@dataclass(frozen=True)
class Turn:
    """One arm alone, for a while; the turn of the other arm with the same load, repeat and block is its pair."""

    arm: Arm
    load: Load
    repeat: int
    block: int
    prompts: tuple[Prompt, ...]
    arrivals_s: tuple[float, ...]
    """Open loop: when each should come, from the turn's begin. Closed loop: empty."""


@dataclass(frozen=True)
class BenchPlan:
    spec: BenchSpec
    asked: Asked
    servers: dict[Arm, ServerLabel]
    prompts: PromptSet
    turns: tuple[Turn, ...]
    folder: Path
    num_skipped: int
    """Requests that an earlier start of the same benchmark finished."""

    @property
    def num_requests(self) -> int:
        return sum(len(turn.prompts) for turn in self.turns)


def check_spec(spec: BenchSpec) -> None:
    """Raises ConfigError for what cannot be asked of any server."""
    if spec.rate_per_s is None and not spec.concurrency:
        raise ConfigError("bench.concurrency is empty and bench.rate_per_s is not set: there is nothing to ask")
    wrong = [number for number in spec.concurrency if number < 1]
    if wrong:
        raise ConfigError(
            f"bench.concurrency: expected numbers of requests at a time, found {wrong[0]}", hint="1 or more"
        )
    if len(set(spec.concurrency)) < len(spec.concurrency):
        raise ConfigError(f"bench.concurrency: a number is there twice: {', '.join(map(str, spec.concurrency))}")
    if spec.baseline == spec.server:
        raise ConfigError(f"--baseline is {spec.server} itself", hint="name a server without a drafter, or none")


def plan_bench(
    spec: BenchSpec,
    server: ServerLabel,
    baseline: ServerLabel,
    prompts: PromptSet,
    folder: Path,
    *,
    finished: frozenset[Key] = frozenset(),
) -> BenchPlan:
    """Raises ConfigError if the two servers cannot be compared."""
    check_spec(spec)
    _check_pair(server, baseline)
    loads = loads_of(spec)
    every = tuple(_turns(spec, loads, prompts.prompts, frozenset()))
    turns = tuple(_turns(spec, loads, prompts.prompts, finished))
    num_left = sum(len(turn.prompts) for turn in turns)
    return BenchPlan(
        spec=spec,
        asked=_asked(spec, prompts),
        servers={"baseline": baseline, "speculative": server},
        prompts=prompts,
        turns=turns,
        folder=folder,
        num_skipped=sum(len(turn.prompts) for turn in every) - num_left,
    )


def loads_of(spec: BenchSpec) -> tuple[Load, ...]:
    if spec.rate_per_s is not None:
        return (Load(None, spec.rate_per_s),)
    return tuple(Load(number, None) for number in spec.concurrency)


def label_of(record: ServerRecord, *, is_temporary: bool = False) -> ServerLabel:
    return ServerLabel(
        name=record.name,
        base_url=record.base_url,
        model=record.model,
        engine=record.engine,
        target=record.target,
        drafter_label=record.drafter_label,
        drafter_sha256=record.drafter_sha256,
        num_draft_tokens=record.num_draft_tokens,
        is_temporary=is_temporary,
    )


def label_of_plain(server: ServerLabel, name: str) -> ServerLabel:
    """A baseline like `server` that is yet to be started: where it listens is not known before."""
    return server.model_copy(
        update={
            "name": name,
            "model": name,
            "base_url": "",
            "drafter_label": None,
            "drafter_sha256": None,
            "num_draft_tokens": None,
            "is_temporary": True,
        }
    )


def new_folder(benchmarks: Path, server: str, stamp: str) -> Path:
    """SERVER-TIME, and a number where that is taken."""
    folder = benchmarks / f"{server}-{stamp}"
    count = 1
    while folder.exists():
        count += 1
        folder = benchmarks / f"{server}-{stamp}-{count}"
    return folder


def request_body(spec: BenchSpec, model: str, prompt: Prompt, extras: Extras) -> dict[str, Any]:
    """One request; temperature, top_p and seed are always said, so that no server's own defaults decide."""
    options = {"include_usage": True} | ({"continuous_usage_stats": True} if extras.continuous_usage else {})
    body: dict[str, Any] = {
        "model": model,
        "messages": list(prompt.messages),
        "max_tokens": spec.max_new_tokens,
        "temperature": spec.temperature,
        "top_p": spec.top_p,
        "seed": spec.seed,
        "stream": True,
        "stream_options": options,
    }
    if spec.top_k:
        body["top_k"] = spec.top_k
    if spec.chat_template_kwargs:
        body["chat_template_kwargs"] = spec.chat_template_kwargs
    if extras.token_ids:
        body["return_token_ids"] = True
    return body


def finished_keys(requests: Iterable[RequestRecord]) -> frozenset[Key]:
    """What need not be asked again: the last word on it was no error."""
    last = {request.key: request for request in requests}
    return frozenset(key for key, request in last.items() if request.error is None)


def check_same(plan: BenchPlan, before: SegmentRecord) -> None:
    """Raises ConfigError if going on would mix two different measurements."""
    asked_now, asked_then = (one.model_dump(exclude={"prompts"}) for one in (plan.asked, before.asked))
    pairs = [(f"bench.{name}", asked_then[name], asked_now[name]) for name in asked_now]
    for arm in ARMS:
        then, now = before.servers[arm], plan.servers[arm]
        for name in ("engine", "target", "drafter_label", "drafter_sha256", "num_draft_tokens"):
            pairs.append((f"{name} of the {arm} arm", getattr(then, name), getattr(now, name)))
    for name, then_value, now_value in pairs:
        if then_value != now_value:
            raise ConfigError(
                f"{plan.folder} was begun with {name} = {then_value}, and now it is {now_value}",
                hint="give the same options, or begin anew without --resume",
            )


def _check_pair(server: ServerLabel, baseline: ServerLabel) -> None:
    if server.num_draft_tokens is None:
        raise ConfigError(
            f"server {server.name} decodes plainly: there is no speculation to measure",
            hint="dflashctl deploy up --drafter RUN, or name it as --baseline of another server",
        )
    if baseline.num_draft_tokens is not None:
        raise ConfigError(
            f"--baseline {baseline.name} has a drafter ({baseline.drafter_label}): it is no baseline",
            hint="name a server without one, or leave --baseline out and one is started for the time",
        )
    if server.target != baseline.target:
        raise ConfigError(
            f"{server.name} serves {server.target} and {baseline.name} serves {baseline.target}: two targets cannot "
            "be compared",
            hint="leave --baseline out and a fitting one is started for the time",
        )


def _asked(spec: BenchSpec, prompts: PromptSet) -> Asked:
    return Asked(
        prompts=str(prompts.path),
        prompts_sha256=prompts.sha256,
        num_prompts=len(prompts.prompts),
        max_new_tokens=spec.max_new_tokens,
        temperature=spec.temperature,
        top_p=spec.top_p,
        top_k=spec.top_k,
        seed=spec.seed,
        chat_template_kwargs=spec.chat_template_kwargs,
        concurrency=() if spec.rate_per_s is not None else spec.concurrency,
        rate_per_s=spec.rate_per_s,
        num_repeats=spec.num_repeats,
        num_warmup=spec.num_warmup,
    )


def _turns(
    spec: BenchSpec, loads: tuple[Load, ...], prompts: tuple[Prompt, ...], finished: frozenset[Key]
) -> Iterator[Turn]:
    """A, B, B, A: whatever the machine does meanwhile hits both arms."""
    for load in loads:
        for repeat in range(spec.num_repeats):
            for block, members in enumerate(_blocks(load, prompts)):
                arms = ARMS if (repeat + block) % 2 == 0 else ARMS[::-1]
                for arm in arms:
                    left = tuple(p for p in members if (arm, load.label, repeat, p.id) not in finished)
                    if left:
                        yield Turn(arm, load, repeat, block, left, _arrivals_s(load, len(left), spec.seed, repeat))


def _blocks(load: Load, prompts: tuple[Prompt, ...]) -> Iterator[tuple[Prompt, ...]]:
    size = len(prompts)
    if load.concurrency is not None:
        size = 1 if load.concurrency == 1 else load.concurrency * TURN_ROUNDS
    for start in range(0, len(prompts), size):
        yield prompts[start : start + size]


def _arrivals_s(load: Load, num: int, seed: int, repeat: int) -> tuple[float, ...]:
    """Poisson: exponential gaps, the same for both arms."""
    if load.rate_per_s is None:
        return ()
    draw = random.Random(f"{seed}/{repeat}")
    now_s = 0.0
    out = []
    for _ in range(num):
        now_s += draw.expovariate(load.rate_per_s)
        out.append(now_s)
    return tuple(out)
