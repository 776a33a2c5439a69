"""The HTTP side: checks a request, hands it to the scheduler, and passes on what comes back. Decodes nothing itself.

The event loop runs in a thread of its own; the decoding thread reaches it through `call_soon_threadsafe` only.
"""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from dflashctl_remote.serve.loading import ServedModel
from dflashctl_remote.serve.metrics import Counters
from dflashctl_remote.serve.openai import ApiError, ChatRequest, CompletionRequest, parse_request
from dflashctl_remote.serve.prepare import answer_request, chat_prompt, completion_prompt
from dflashctl_remote.serve.replies import Reply
from dflashctl_remote.serve.scheduler import Delta, Failure, NotServing, QueueFull, Scheduler

BODY_BYTES = 64 * 1024
BODY_BYTES_PER_TOKEN = 64
"""Text has about four bytes a token, ids up to eight."""


@dataclass(frozen=True)
class Backend:
    model: ServedModel
    scheduler: Scheduler
    counters: Counters


class Service:
    """What the routes share; the backend comes when the weights are loaded."""

    def __init__(self) -> None:
        self.backend: Backend | None = None
        self.is_closing = False

    def ready(self) -> Backend:
        """Raises ApiError 503."""
        if self.is_closing:
            raise ApiError(503, "the server is shutting down", code="shutting_down")
        if self.backend is None:
            raise ApiError(503, "the weights are being loaded: ask again later", code="loading")
        if not self.backend.scheduler.is_alive:
            raise ApiError(503, "the thread that decodes has ended: the server must be started anew", code="dead")
        return self.backend


def make_app(service: Service) -> Starlette:
    routes = [
        Route("/v1/chat/completions", _chat, methods=["POST"]),
        Route("/v1/completions", _completions, methods=["POST"]),
        Route("/v1/models", _models),
        Route("/health", _health),
        Route("/metrics", _metrics),
        Route("/version", _version),
    ]
    handlers: Mapping[Any, Any] = {
        ApiError: _on_api_error,
        HTTPException: _on_http_error,
        ClientDisconnect: _on_disconnect,
        Exception: _on_bug,
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.state.service = service
    return app


async def _chat(request: Request) -> Response:
    backend = _ready(request)
    wanted = parse_request(ChatRequest, await _body(request, backend.model.max_length_tokens))
    # Off the event loop: however long it takes, other requests and the health check are answered meanwhile.
    prompt_ids = await asyncio.to_thread(chat_prompt, backend.model, wanted)
    max_tokens = wanted.max_tokens if wanted.max_completion_tokens is None else wanted.max_completion_tokens
    return _Answer(backend, wanted, prompt_ids, max_tokens)


async def _completions(request: Request) -> Response:
    backend = _ready(request)
    wanted = parse_request(CompletionRequest, await _body(request, backend.model.max_length_tokens))
    prompt_ids = await asyncio.to_thread(completion_prompt, backend.model, wanted)
    return _Answer(backend, wanted, prompt_ids, wanted.max_tokens)


async def _body(request: Request, max_length_tokens: int) -> bytes:
    """The body, read no further than any prompt that fits the context could be long. Raises ApiError 400."""
    limit_bytes = BODY_BYTES + BODY_BYTES_PER_TOKEN * max_length_tokens
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit_bytes:
            raise ApiError(
                400,
                f"the request has more than {limit_bytes:,} bytes, and no prompt of the {max_length_tokens} tokens "
                "that the server takes is that long: shorten it",
                code="context_length_exceeded",
            )
    return bytes(body)


async def _models(request: Request) -> Response:
    model = _ready(request).model
    entry = {"id": model.name, "object": "model", "created": 0, "owned_by": "dflashctl"}
    more = {"max_model_len": model.max_length_tokens, "root": model.about["target"], "about": model.about["about"]}
    return JSONResponse({"object": "list", "data": [entry | more]})


async def _health(request: Request) -> Response:
    _ready(request)
    return JSONResponse({"status": "ok"})


async def _metrics(request: Request) -> Response:
    backend = _ready(request)
    text = backend.counters.exposition(lambda: backend.scheduler.occupancy)
    return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})


async def _version(request: Request) -> Response:
    model = _ready(request).model
    return JSONResponse({"version": f"reference-{model.about['bundle_sha'][:12]}", **model.about})


def _ready(request: Request) -> Backend:
    service: Service = request.app.state.service
    return service.ready()


class _Answer(Response):
    """One answer, whole or in chunks. Whoever hangs up gives the slot back."""

    def __init__(
        self,
        backend: Backend,
        wanted: ChatRequest | CompletionRequest,
        prompt_ids: tuple[int, ...],
        max_tokens: int | None,
    ) -> None:
        is_chat = isinstance(wanted, ChatRequest)
        self._scheduler = backend.scheduler
        self._wanted = wanted
        self._reply = Reply(
            id=f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}",
            created_s=int(time.time()),
            model=backend.model.name,
            prompt_ids=prompt_ids,
            has_token_ids=bool(wanted.return_token_ids),
            is_chat=is_chat,
        )
        # None: nobody listens any more.
        self._arrivals: asyncio.Queue[Delta | Failure | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def deliver(item: Delta | Failure) -> None:
            loop.call_soon_threadsafe(self._arrivals.put_nowait, item)

        self._request = answer_request(backend.model, wanted, prompt_ids, max_tokens, self._reply.id, deliver)
        try:
            self._scheduler.submit(self._request)
        except QueueFull:
            raise ApiError(503, "too many requests wait already: ask again later", code="queue_full") from None
        except NotServing:
            raise ApiError(503, "the server is shutting down", code="shutting_down") from None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watching = asyncio.create_task(self._watch(receive))
        try:
            first = await self._arrivals.get()
            if isinstance(first, Failure):
                await _error_of(first)(scope, receive, send)
            elif first is not None:
                answer = self._stream if self._wanted.stream else self._whole
                await answer(first, scope, receive, send)
        finally:
            watching.cancel()
            self._scheduler.cancel(self._request)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._arrivals.put_nowait(None)

    async def _whole(self, first: Delta, scope: Scope, receive: Receive, send: Send) -> None:
        deltas = [first]
        while not deltas[-1].finish_reason:
            item = await self._arrivals.get()
            if item is None:
                return
            if isinstance(item, Failure):
                await _error_of(item)(scope, receive, send)
                return
            deltas.append(item)
        body = self._reply.whole(deltas, self._request.speculation)
        await JSONResponse(body)(scope, receive, send)

    async def _stream(self, first: Delta, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for event in self._events(first):
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self, first: Delta) -> AsyncIterator[bytes]:
        """Server-sent events. An answer that fails ends with the error, and without [DONE]."""
        options = self._wanted.stream_options
        is_continuous = options is not None and options.continuous_usage_stats

        def event(chunk: dict[str, Any], num_tokens: int) -> bytes:
            return _event(chunk | {"usage": self._reply.usage(num_tokens)} if is_continuous else chunk)

        for chunk in self._reply.first_chunks():
            yield event(chunk, 0)
        item: Delta | Failure | None = first
        while isinstance(item, Delta):
            yield event(self._reply.chunk(item, is_first=item is first), item.num_tokens)
            if item.finish_reason:
                if options is not None and options.include_usage:
                    yield _event(self._reply.last_chunk(item.num_tokens, self._request.speculation))
                yield b"data: [DONE]\n\n"
                return
            item = await self._arrivals.get()
        if item is not None:
            yield _event(_api_error_of(item).body)


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def _api_error_of(failure: Failure) -> ApiError:
    if failure.kind == "shutdown":
        return ApiError(503, failure.message, code="shutting_down")
    return ApiError(500, failure.message, code="decoding_failed")


def _error_of(failure: Failure) -> Response:
    error = _api_error_of(failure)
    return JSONResponse(error.body, status_code=error.status)


async def _on_api_error(request: Request, error: ApiError) -> Response:
    headers = {"retry-after": "1"} if error.status == 503 else None
    return JSONResponse(error.body, status_code=error.status, headers=headers)


async def _on_http_error(request: Request, error: HTTPException) -> Response:
    message = f"{request.method} {request.url.path}: {error.detail}"
    answer = ApiError(error.status_code, message, code="no_such_endpoint")
    return JSONResponse(answer.body, status_code=error.status_code, headers=error.headers)


async def _on_disconnect(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=400)


async def _on_bug(request: Request, error: Exception) -> Response:
    answer = ApiError(500, f"bug: {type(error).__name__}: {error}", code="bug")
    return JSONResponse(answer.body, status_code=500)
