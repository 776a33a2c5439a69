"""Ready means: health, a real completion, and, with a drafter, drafts that were accepted on it.

A server that lost its drafter answers as well as before, only slower: nothing but the counters can tell.
"""

import time

from dflashctl.engines.base import Engine, SpecCounters
from dflashctl.errors import EngineUnhealthy
from dflashctl.records import Proof, ServerRecord
from dflashctl.transport.base import Transport
from dflashctl.transport.http import Reply

PROMPTS = (
    "def add(a, b):\n    # Return the sum of two numbers.",
    "Write a Python function that counts the words of a text.",
    "List the numbers from one to ten, one a line.",
)
"""The next is asked only while the answers so far hold too few verify steps to say anything, or no accepted draft."""
ENOUGH_STEPS = 8
NUM_TOKENS = 48
ANSWER_S = 300.0


class NoAnswer(EngineUnhealthy):
    """Nobody answered, or broke off: the server may have ended."""


def prove(record: ServerRecord, engine: Engine, transport: Transport) -> Proof:
    """Raises EngineUnhealthy with what was seen; NoAnswer if that was nothing."""
    health = transport.get(record.base_url + engine.readiness.health_path, timeout_s=10.0)
    if not health.is_ok:
        raise _error_of(health)(
            f"server {record.name} listens and is not healthy: {engine.readiness.health_path} gave "
            f"{health.status or 'no answer'} {health.text[:200]}"
        )
    before = _counters(record, engine, transport)
    num_tokens, text = 0, ""
    seen: SpecCounters | None = None
    for prompt in PROMPTS:
        more, text_here = _complete(record, prompt, transport)
        num_tokens += more
        text = text or text_here
        if record.drafter is None:
            break
        after = _counters(record, engine, transport)
        if before is None or after is None:
            raise EngineUnhealthy(
                f"server {record.name} was started with a drafter and counts no drafts at "
                f"{engine.readiness.metrics_path}: it decodes plainly"
            )
        try:
            seen = after.since(before)
        except ValueError as error:
            raise EngineUnhealthy(f"server {record.name} started anew while it was asked: {error}") from error
        if seen.num_drafts >= ENOUGH_STEPS and seen.num_accepted_tokens:
            break
    if seen is not None:
        _require_accepted(record, seen)
    return Proof(
        at_s=time.time(),
        num_tokens=num_tokens,
        text=text[:200],
        tau=None if seen is None else seen.tau,
        num_verify_steps=0 if seen is None else seen.num_drafts,
    )


def _error_of(reply: Reply) -> type[EngineUnhealthy]:
    return EngineUnhealthy if reply.status else NoAnswer


def _require_accepted(record: ServerRecord, seen: SpecCounters) -> None:
    if seen.num_drafts == 0:
        raise EngineUnhealthy(f"server {record.name} answered without a single verify step: it decodes plainly")
    if seen.num_accepted_tokens == 0:
        raise EngineUnhealthy(
            f"server {record.name} serves, and none of {seen.num_draft_tokens} drafts in {seen.num_drafts} verify "
            f"steps was accepted: tau is exactly 1 with drafter {record.drafter_label}",
            hint="an untrained drafter, one of another target, wrong taps or another chat template do this; "
            "dflashctl eval run measures the same without a server",
        )


def _counters(record: ServerRecord, engine: Engine, transport: Transport) -> SpecCounters | None:
    reply = transport.get(record.base_url + engine.readiness.metrics_path, timeout_s=10.0)
    return engine.counters(reply.text) if reply.is_ok else None


def _complete(record: ServerRecord, prompt: str, transport: Transport) -> tuple[int, str]:
    """Tokens and text of one answer by the chat endpoint."""
    body = {
        "model": record.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": NUM_TOKENS,
        "temperature": 0,
    }
    reply = transport.post(record.base_url + "/v1/chat/completions", body, timeout_s=ANSWER_S)
    answer = reply.json()
    try:
        num_tokens = int(answer["usage"]["completion_tokens"])
        text = str(answer["choices"][0]["message"]["content"] or "")
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise _error_of(reply)(
            f"server {record.name} is healthy and gives no completion: {reply.status or 'no answer'} {reply.text[:200]}"
        ) from error
    if num_tokens == 0:
        raise EngineUnhealthy(f"server {record.name} is healthy and its completion has no token")
    return num_tokens, text
