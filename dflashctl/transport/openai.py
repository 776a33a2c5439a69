"""One streamed answer of an OpenAI-compatible server, with the time of every chunk. Measures, and judges nothing.

What goes wrong on the way is part of the account (`Answer.error`), so that a benchmark records it like anything else.
"""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import httpx

DETAIL_LENGTH = 300
MOST_CONNECTIONS = 1024


@dataclass(frozen=True)
class Chunk:
    """What one delta brought: text, reasoning, a tool call or bare tokens. Deltas without any of these are no chunk."""

    at_s: float
    num_tokens: int | None
    """From token ids or continuous usage; None: the server tells neither."""


@dataclass(frozen=True)
class Answer:
    """Times are those of the client's clock; `sent_s` is just before the request is handed to the connection."""

    sent_s: float
    ended_s: float
    """The end of the stream, or of the wait for it."""
    chunks: tuple[Chunk, ...]
    text: str
    """Reasoning first, as it came."""
    token_ids: tuple[int, ...] | None
    num_prompt_tokens: int | None
    num_output_tokens: int | None
    """From usage."""
    num_cached_tokens: int | None
    finish_reason: str | None
    error: str | None
    status: int
    """Of HTTP; 0: none came."""


class OpenAiClient:
    """Many requests at once on one event loop. Proxies of the environment are not asked."""

    def __init__(self, base_url: str, *, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`timeout_s` is the longest that an answer may take, from sending to its end."""
        limits = httpx.Limits(max_connections=MOST_CONNECTIONS, max_keepalive_connections=MOST_CONNECTIONS)
        self._client = httpx.AsyncClient(base_url=base_url, timeout=None, limits=limits, trust_env=False)
        self._clock = clock
        self._timeout_s = timeout_s

    async def __aenter__(self) -> "OpenAiClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def get_text(self, path: str, *, timeout_s: float = 10.0) -> str | None:
        """The body of a 200; None for any other answer, or none."""
        try:
            reply = await self._client.get(path, timeout=timeout_s)
        except httpx.HTTPError:
            return None
        return reply.text if reply.status_code == 200 else None

    async def get_json(self, path: str) -> Any:
        """None if nobody answers with JSON."""
        text = await self.get_text(path)
        try:
            return None if text is None else json.loads(text)
        except ValueError:
            return None

    async def stream_chat(self, body: dict[str, Any]) -> Answer:
        """Ask /v1/chat/completions and read the stream to its end. Raises nothing that the server could cause."""
        reading = _Reading()
        sent_s = self._clock()
        status = 0
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._client.stream("POST", "/v1/chat/completions", json=body) as reply,
            ):
                status = reply.status_code
                if status != 200:
                    await reply.aread()
                    reading.error = f"HTTP {status}: {_detail(reply.text)}"
                else:
                    async for line in reply.aiter_lines():
                        reading.add(line, self._clock())
        except TimeoutError:
            reading.error = f"no end within {self._timeout_s:g} s{reading.progress}"
        except httpx.HTTPError as error:
            reading.error = f"{_words(error)}{reading.progress}"
        return reading.answer(sent_s, self._clock(), status)


class _Reading:
    """The lines of one stream so far."""

    def __init__(self) -> None:
        self.error: str | None = None
        self._chunks: list[Chunk] = []
        self._text: list[str] = []
        self._token_ids: list[int] | None = None
        self._usage: dict[str, Any] = {}
        self._num_told = 0
        """Tokens that a continuous usage has told of."""
        self._finish_reason: str | None = None

    @property
    def progress(self) -> str:
        return f" after {len(self._chunks)} chunks" if self._chunks else ""

    def add(self, line: str, at_s: float) -> None:
        if not line.startswith("data:") or self.error is not None:
            return
        data = line[5:].strip()
        if data == "[DONE]":
            return
        try:
            event = json.loads(data)
        except ValueError:
            self.error = f"the stream holds what is no JSON: {data[:80]!r}"
            return
        if not isinstance(event, dict) or event.get("error"):
            self.error = f"in the stream: {_detail(data)}"
            return
        usage = event.get("usage")
        choices = event.get("choices") or []
        if usage:
            self._usage = usage
        if choices:
            self._add_choice(choices[0], usage, at_s)

    def answer(self, sent_s: float, ended_s: float, status: int) -> Answer:
        if self.error is None and self._finish_reason is None:
            self.error = f"the stream ended without a finish reason{self.progress}"
        details = self._usage.get("prompt_tokens_details") or {}
        return Answer(
            sent_s=sent_s,
            ended_s=ended_s,
            chunks=tuple(self._chunks),
            # Half of a surrogate pair cannot be written down.
            text="".join(self._text).encode("utf-8", "replace").decode("utf-8"),
            token_ids=None if self._token_ids is None else tuple(self._token_ids),
            num_prompt_tokens=self._usage.get("prompt_tokens"),
            num_output_tokens=self._usage.get("completion_tokens"),
            num_cached_tokens=details.get("cached_tokens"),
            finish_reason=self._finish_reason,
            error=self.error,
            status=status,
        )

    def _add_choice(self, choice: dict[str, Any], usage: dict[str, Any] | None, at_s: float) -> None:
        delta = choice.get("delta") or {}
        text = "".join(delta.get(name) or "" for name in ("reasoning_content", "reasoning", "content"))
        num_tokens = self._num_tokens(choice.get("token_ids"), usage)
        self._finish_reason = choice.get("finish_reason") or self._finish_reason
        self._text.append(text)
        has_something = bool(text or delta.get("tool_calls")) if num_tokens is None else num_tokens > 0
        if has_something:
            self._chunks.append(Chunk(at_s, num_tokens))

    def _num_tokens(self, token_ids: list[int] | None, usage: dict[str, Any] | None) -> int | None:
        num_before = self._num_told
        if usage and usage.get("completion_tokens") is not None:
            self._num_told = int(usage["completion_tokens"])
        if token_ids is not None:
            self._token_ids = [*(self._token_ids or []), *token_ids]
            return len(token_ids)
        return self._num_told - num_before if usage else None


def _detail(text: str) -> str:
    """The message of an error in OpenAI's shape, or the text as it is; short."""
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    error = body.get("error", body) if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return " ".join(str(message or text).split())[:DETAIL_LENGTH]


def _words(error: httpx.HTTPError) -> str:
    name = type(error).__name__
    return f"{name}: {error}" if str(error) else f"the connection broke off ({name})"
